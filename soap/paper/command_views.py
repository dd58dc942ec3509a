"""Output of `soap reproduce`: tables, figures and claims for a terminal (rich) and as JSON."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from soap.cli.console import table
from soap.paper.claims import claims_about
from soap.paper.comparison import ComparedCell, Comparison, Entry, display_name, heading
from soap.paper.figure_data import FigureData, PaperFigure
from soap.paper.jobs import TERAFLOPS, Job, estimated_hours
from soap.paper.judging import (
    MARKS,
    READING,
    TITLE,
    VERDICT_WORDS,
    JudgedClaim,
    count_text,
    grouped_by_verdict,
    signs_text,
)
from soap.paper.results_page import group_cells

CLAIMS_NAME = "claims"
MARKUP = {
    r"<u>\*\*(.+?)\*\*</u>": r"[bold underline]\1[/]",
    r"\*\*(.+?)\*\*": r"[bold]\1[/]",
    r"^\*(.+)\*$": r"[bold]\1[/]",
    r"\\\*": "*",
    r"<sup>(.+?)</sup>": r" \1)",
}
"""Markdown of a table's cells, and what it is for rich."""
VERDICT_STYLES = {False: "bold red", True: "green", None: ""}


def table_view(entry: Entry) -> RenderableType:
    """The whole table with caption and footnotes; a cell reads: ours / paper (difference)."""
    parts: list[RenderableType] = [Text(heading(entry), "bold"), Text(entry.table.caption)]
    if not isinstance(entry, Comparison):
        return Group(*parts, _filled(list(entry.head), entry.rows), *map(Text, entry.notes))
    for group in entry.groups:
        parts += [Text(f"\n{group.label}", "bold"), _filled(*group_cells(entry, group))]
    parts += [Text(f"{number}) {note}") for number, note in enumerate(entry.notes, 1)]
    return Group(*parts, *map(Text, entry.remarks))


def _filled(head: Sequence[str], lines: Iterable[Sequence[str]]) -> RenderableType:
    """A table of cells in Markdown."""
    made = table(*head)
    for line in lines:
        made.add_row(*map(_cell, line))
    return made


def _cell(text: str) -> Text:
    for markdown, markup in MARKUP.items():
        text = re.sub(markdown, markup, text)
    return Text.from_markup(text)


def table_json(entry: Entry) -> dict[str, Any]:
    """The table as JSON; each number of ours has the keys of its result rows."""
    content = {key: getattr(entry.table, key) for key in ("name", "title", "caption")}
    if not isinstance(entry, Comparison):
        return {**content, "head": entry.head, "rows": entry.rows, "notes": entry.notes}
    for key in ("wanted", "done", "missing", "notes", "remarks"):
        content[key] = getattr(entry, key)
    cells = [_cell_json(entry, compared) for compared in entry.cells.values()]
    return {**content, "measure": entry.table.measure, "cells": cells}


def _cell_json(entry: Comparison, compared: ComparedCell) -> dict[str, Any]:
    cell = compared.cell
    same = {key: getattr(compared, key) for key in ("ours", "low", "high", "difference", "mark", "signs", "note")}
    return {
        **{key: getattr(cell, key) for key in ("row", "group", "column", "printed", "oracle")},
        "label": entry.label(cell.place),
        "recipe": None if cell.query is None else cell.query.recipe,
        "printed_mark": cell.mark,
        **same,
        "trainings": len(compared.rows),
        "n": compared.rows[0].n if compared.rows else None,
        "result_rows": [result.key for result in compared.rows],
    }


def table_state(entry: Entry, jobs: Sequence[Job]) -> dict[str, Any]:
    """Name, title and state of a table, for the list. jobs: those that would fill its empty cells."""
    content = table_json(entry)
    state = {key: content.get(key) for key in ("name", "title", "wanted", "done", "missing")}
    return {**state, "jobs": len(jobs), "estimated_hours": round(estimated_hours(jobs), 1)}


def tables_view(entries: Sequence[Entry], jobs: Sequence[Sequence[Job]]) -> RenderableType:
    """The list of tables, one line each. jobs: for each table, those that would fill its empty cells."""
    head = ("name", "title", "cells done", "missing cells by recipe", "cost*")
    made = table(*head, right=("cells done", "cost*"), whole=("name",))
    for entry, own in zip(entries, jobs, strict=True):
        cost = f"{len(own)} jobs, {estimated_hours(own):.0f} h" if own else ""
        made.add_row(entry.table.name, entry.table.title, entry.progress, entry.missing_text, cost)
    if not any(jobs):
        return made
    note = (
        f"* of --run, roughly, at {TERAFLOPS:g} TFLOP/s, the rate of a large GPU in fp32. It also measures again the "
        "cells with fewer images than the paper's."
    )
    return Group(made, Text(note))


def claims_view(judged: Sequence[JudgedClaim]) -> RenderableType:
    """All claims, those that did not hold first."""
    count = Text(f"Of {len(judged)}: {count_text(judged)}.")
    parts: list[RenderableType] = [Text(TITLE, "bold"), Text(READING), count]
    for held, own in grouped_by_verdict(judged).items():
        if own:
            head = f"\n{MARKS[held]} {VERDICT_WORDS[held].capitalize()}: {len(own)}"
            parts.append(Text(head, VERDICT_STYLES[held] or "bold"))
        for one in own:
            parts.append(Text(f"- {one.claim.text} ({one.source})"))
            lines = [f"Rule: {one.claim.rule}.", one.ours.evidence, f"The paper's own numbers: {one.printed_text}."]
            parts += [Padding(Text(line), (0, 0, 0, 4), expand=False) for line in lines]
    signs = signs_text(judged)
    return Group(*parts, *([Text(f"\n{signs}.")] if signs else []))


def claims_json(judged: Sequence[JudgedClaim]) -> dict[str, Any]:
    """Counts and claims as JSON."""
    claims = [claim_json(one) for one in judged]
    return {"name": CLAIMS_NAME, "title": TITLE, **claim_counts(judged), "claims": claims}


def claim_json(judged: JudgedClaim) -> dict[str, Any]:
    """One claim as JSON; `held` is null if a number is missing."""
    printed = judged.printed
    return {
        **{key: getattr(judged.claim, key) for key in ("name", "text", "section", "about", "rule")},
        "held": judged.ours.held,
        "evidence": judged.ours.evidence,
        "printed_held": None if printed is None else printed.held,
        "printed_evidence": None if printed is None else printed.evidence,
    }


def claim_counts(judged: Sequence[JudgedClaim]) -> dict[str, int]:
    """Number of claims by verdict: {"did_not_hold": 3, ...}."""
    return {VERDICT_WORDS[held].replace(" ", "_"): len(own) for held, own in grouped_by_verdict(judged).items()}


def claims_line(judged: Sequence[JudgedClaim]) -> RenderableType:
    """The line of the claims in the list."""
    made = table("name", "title", "verdicts", whole=("name",))
    made.add_row(CLAIMS_NAME, TITLE, count_text(judged))
    return made


def figure_state(figure: PaperFigure, data: FigureData) -> dict[str, Any]:
    """Title, claims and missing inputs of a figure as JSON."""
    missing = figure.missing(data)
    inputs = len(figure.inputs)
    claims = [f"{claim.text} ({claim.place})" for claim in claims_about(figure.name)]
    words = {"name": figure.name, "title": figure.title, "caption": figure.caption, "claims": claims}
    return {**words, "wanted": inputs, "done": inputs - len(missing), "missing": missing}


def figures_view(states: Sequence[dict[str, Any]]) -> RenderableType:
    """The list of figures, one line each."""
    made = table("name", "title", "inputs done", "missing", right=("inputs done",), whole=("name",))
    for state in states:
        first, *others = state["missing"] or [""]
        more = f" (and {len(others)} more)" if others else ""
        made.add_row(state["name"], state["title"], f"{state['done']} of {state['wanted']}", first + more)
    return made


def figure_view(
    state: dict[str, Any], judged: Sequence[JudgedClaim | None], paths: Sequence[Path]
) -> tuple[dict[str, Any], RenderableType]:
    """A drawn figure with its claims as JSON and for a terminal. judged: in the order of the figure's claims."""
    title = f"{display_name(state['name'])}: {state['title']}"
    parts: list[RenderableType] = [Text(title, "bold"), Text(state["caption"])]
    parts += [Text("What the paper says of it:")] if judged else []
    for claim, one in zip(state["claims"], judged, strict=True):
        parts.append(Text(f"- {claim}"))
        if one is not None:
            held = one.ours.held
            verdict = (f"{MARKS[held]} {VERDICT_WORDS[held]}", VERDICT_STYLES[held])
            text = Text.assemble(verdict, f". {one.ours.evidence} (Rule: {one.claim.rule}.)")
            parts.append(Padding(text, (0, 0, 0, 4), expand=False))
    parts += [Text(f"Missing: {words}") for words in state["missing"]]
    parts += [Text(str(path)) for path in paths]
    verdicts = [claim_json(one) for one in judged if one is not None]
    return {**state, "verdicts": verdicts, "files": paths}, Group(*parts)
