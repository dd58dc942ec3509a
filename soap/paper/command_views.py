"""Output of `soap reproduce`: Markdown, as in docs/results.md, and JSON."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markdown import Markdown

from soap.paper.claims import claims_about
from soap.paper.comparison import ComparedCell, Comparison, Entry, display_name
from soap.paper.figure_data import FigureData, PaperFigure
from soap.paper.jobs import TERAFLOPS, Job, estimated_hours
from soap.paper.judging import MARKS, TITLE, VERDICT_WORDS, JudgedClaim, count_text, grouped_by_verdict
from soap.report import markdown_table

CLAIMS_NAME = "claims"
HOURS_NOTE = (
    f"Hours: of `--run`, roughly, at {TERAFLOPS:g} TFLOP/s, the rate of a large GPU in fp32. It also measures again "
    "the cells with fewer images than the paper's."
)


def on_terminal(markdown: str) -> RenderableType:
    """The text as rich shows Markdown; Markdown itself where the output is a pipe or a file."""
    if not sys.stdout.isatty():
        return markdown
    markdown = re.sub(r"<u>\*\*(.+?)\*\*</u>", r"***\1***", markdown)  # bold and italic
    return Markdown(re.sub(r"<sup>(.+?)</sup>", r" \1)", markdown))


# --- The list of all --------------------------------------------------------------------------------------------------


def table_state(entry: Entry, jobs: Sequence[Job]) -> dict[str, Any]:
    """Name, title and state of a table. jobs: those that would fill its empty cells."""
    state: dict[str, Any] = {"name": entry.table.name, "title": entry.table.title}
    state |= {key: getattr(entry, key, None) for key in ("wanted", "done", "missing")}
    return {**state, "jobs": len(jobs), "estimated_hours": round(estimated_hours(jobs), 1)}


def figure_state(figure: PaperFigure, data: FigureData) -> dict[str, Any]:
    """Title, claims and missing inputs of a figure."""
    missing, inputs = figure.missing(data), len(figure.inputs)
    claims = [f"{claim.text} ({claim.place})" for claim in claims_about(figure.name)]
    words = {"name": figure.name, "title": figure.title, "caption": figure.caption, "claims": claims}
    return {**words, "wanted": inputs, "done": inputs - len(missing), "missing": missing}


def list_text(
    entries: Sequence[Entry],
    states: Sequence[dict[str, Any]],
    figures: Sequence[dict[str, Any]],
    judged: Sequence[JudgedClaim],
) -> str:
    """One line each for the tables, the figures and the claims. states: of the entries."""
    lines = []
    for entry, state in zip(entries, states, strict=True):
        hours = f"{state['estimated_hours']:.1f}" if state["jobs"] else ""
        lines.append((state["name"], state["title"], entry.progress, entry.missing_text, hours))
    for state in figures:
        first, *others = state["missing"] or [""]
        more = f" (and {len(others)} more)" if others else ""
        lines.append((state["name"], state["title"], f"{state['done']} of {state['wanted']}", first + more, ""))
    if judged:
        lines.append((CLAIMS_NAME, TITLE, count_text(judged), "", ""))
    return f"{markdown_table(('name', 'title', 'done', 'missing', 'hours'), lines)}\n\n{HOURS_NOTE}"


# --- One table, one figure, the claims --------------------------------------------------------------------------------


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


def figure_text(state: dict[str, Any], table: str, judged: Sequence[JudgedClaim | None], paths: Sequence[Path]) -> str:
    """A figure, or its table, with the paper's claims about it. judged: in the order of the figure's claims."""
    parts = [f"## {display_name(state['name'])}: {state['title']}", state["caption"], *([table] if table else [])]
    for claim, one in zip(state["claims"], judged, strict=True):
        verdict = ""
        if one is not None:
            sign = f"{MARKS[one.ours.held]} {VERDICT_WORDS[one.ours.held]}"
            verdict = f" **{sign}.** {one.ours.evidence} *Rule: {one.claim.rule}.*"
        parts.append(f"- {claim}{verdict}")
    return "\n\n".join([*parts, *(f"Missing: {words}" for words in state["missing"]), *map(str, paths)])


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
