"""Output of `soap reproduce`: tables, figures and claims for a terminal (rich) and as JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from soap.cli.tables import table
from soap.paper.claims.checks import claims_about
from soap.paper.claims.judging import (
    MARKS,
    READING,
    TITLE,
    VERDICT_WORDS,
    JudgedClaim,
    count_text,
    grouped_by_verdict,
    signs_text,
)
from soap.paper.comparison import ComparedCell, Comparison, Entry, display_name, heading, number_text, points
from soap.paper.figure_data import FigureData
from soap.paper.figure_list import PaperFigure
from soap.paper.tables import Heading

CLAIMS_NAME = "claims"
MARK_STYLES = {"best": "bold underline", "second": "bold", "": ""}
BIN_STYLES = {
    "far-below": "bold red",
    "below": "yellow",
    "near": "",
    "above": "cyan",
    "far-above": "bold green",
    "": "",
}
VERDICT_STYLES = {False: "bold red", True: "green", None: ""}


def table_view(entry: Entry) -> RenderableType:
    """The whole table with caption and footnotes."""
    if not isinstance(entry, Comparison):
        made = table(*entry.head)
        for row in entry.rows:
            made.add_row(*row)
        return Group(Text(heading(entry), "bold"), Text(entry.caption), made, *map(Text, entry.notes))
    parts: list[RenderableType] = [Text(heading(entry), "bold"), Text(entry.table.caption)]
    for group in entry.groups:
        parts += [Text(f"\n{group.label}", "bold"), _group_view(entry, group)]
    parts += [Text(f"{number}) {note}") for number, note in enumerate(entry.notes, 1)]
    return Group(*parts, *map(Text, entry.remarks))


def _group_view(entry: Comparison, group: Heading) -> rich.table.Table:
    """The columns of one group; each method has three lines: ours, the paper's and the difference."""
    labels = [column.label for column in entry.table.columns]
    made = table(entry.table.stub, "", *labels, right=tuple(labels), whole=("",))
    for row, first, cells in entry.lines(group):
        if first:
            made.add_row(Text(row.section, "bold"))
        indent = "  " if row.section else ""
        made.add_row(f"{indent}{row.label}", _line_names(cells), *map(_cell_text, cells))
    return made


def _line_names(cells: list[ComparedCell | None]) -> str:
    """Names of the lines of a method, for those lines that any of its cells has."""
    known = [compared for compared in cells if compared is not None]
    printed = any(compared.cell.printed is not None for compared in known)
    differs = any(compared.difference is not None for compared in known)
    return "\n".join(["ours", *["paper"] * printed, *["diff"] * differs])


def _cell_text(compared: ComparedCell | None) -> Text:
    if compared is None:
        return Text()
    note = "" if compared.note is None else f" {compared.note})"
    lines = [Text(number_text(compared.ours), MARK_STYLES[compared.mark]) + Text("".join(compared.signs) + note)]
    if compared.cell.printed is not None:
        lines.append(Text(number_text(compared.cell.printed), MARK_STYLES[compared.cell.mark]))
    if compared.difference is not None:
        lines.append(Text(points(compared.difference), BIN_STYLES[compared.bin]))
    return Text("\n").join(lines)


def table_json(entry: Entry) -> dict[str, Any]:
    """The table as JSON; each number of ours has the keys of its result rows."""
    if not isinstance(entry, Comparison):
        words = {"head": list(entry.head), "rows": [list(row) for row in entry.rows], "notes": list(entry.notes)}
        return {"name": entry.name, "title": entry.title, "caption": entry.caption, **words}
    return {
        "name": entry.table.name,
        "title": entry.table.title,
        "caption": entry.table.caption,
        "measure": entry.table.measure,
        "wanted": entry.wanted,
        "done": entry.done,
        "missing": entry.missing,
        "cells": [_cell_json(entry, compared) for compared in entry.cells.values()],
        "notes": list(entry.notes),
        "remarks": list(entry.remarks),
    }


def _cell_json(entry: Comparison, compared: ComparedCell) -> dict[str, Any]:
    row, group, column = compared.cell.place
    return {
        "row": row,
        "group": group,
        "column": column,
        "label": entry.label(compared.cell.place),
        "recipe": None if compared.cell.query is None else compared.cell.query.recipe,
        "printed": compared.cell.printed,
        "printed_mark": compared.cell.mark,
        "oracle": compared.cell.oracle,
        "ours": compared.ours,
        "low": compared.low,
        "high": compared.high,
        "trainings": len(compared.rows),
        "n": compared.rows[0].n if compared.rows else None,
        "difference": compared.difference,
        "mark": compared.mark,
        "signs": list(compared.signs),
        "note": compared.note,
        "result_rows": [result.key for result in compared.rows],
    }


def table_state(entry: Entry) -> dict[str, Any]:
    """Name, title and state of a table, for the list."""
    content = table_json(entry)
    return {key: content.get(key) for key in ("name", "title", "wanted", "done", "missing")}


def tables_view(entries: Sequence[Entry]) -> RenderableType:
    """The list of tables, one line each."""
    made = table("name", "title", "cells done", "missing cells by recipe", right=("cells done",), whole=("name",))
    for entry in entries:
        made.add_row(entry.table.name, entry.table.title, entry.progress, entry.missing_text)
    return made


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
        "name": judged.claim.name,
        "text": judged.claim.text,
        "section": judged.claim.section,
        "about": list(judged.claim.about),
        "rule": judged.claim.rule,
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
        done = f"{state['done']} of {state['wanted']}" if state["wanted"] else "from the code"
        first, *others = state["missing"] or [""]
        more = f" (and {len(others)} more)" if others else ""
        made.add_row(state["name"], state["title"], done, first + more)
    return made


def figure_view(
    state: dict[str, Any], judged: Sequence[JudgedClaim | None], paths: Sequence[Path]
) -> tuple[dict[str, Any], RenderableType]:
    """A drawn figure with its claims as JSON and for a terminal. judged: in the order of the figure's claims."""
    parts: list[RenderableType] = [
        Text(f"{display_name(state['name'])}: {state['title']}", "bold"),
        Text(state["caption"]),
    ]
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
