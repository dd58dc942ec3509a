"""Tables of the paper, ours beside them, for a terminal and as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from soap import paper
from soap.cli.tables import table
from soap.report.comparison import Comparison, Shown, compare, points
from soap.report.comparison_words import Entry, bin_of, figure, heading
from soap.report.paper_tables import Heading, Listing
from soap.results import Row

STYLES = {"best": "bold underline", "second": "bold", "": ""}
COLOURS = {"far-below": "bold red", "below": "yellow", "near": "", "above": "cyan", "far-above": "bold green", "": ""}


def compared(tables: Iterable[paper.Table | paper.Listing], rows: Sequence[Row], only: str = "") -> list[Entry]:
    """The tables with ours in them; `only` leaves out cells of other recipes."""
    return [
        compare(entry, rows, paper.explanation, only=only) if isinstance(entry, paper.Table) else entry
        for entry in tables
    ]


def view(entry: Entry) -> RenderableType:
    """The whole table with its caption and footnotes."""
    if not isinstance(entry, Comparison):
        return Group(Text(heading(entry), "bold"), Text(entry.caption), _listing(entry), *map(Text, entry.notes))
    parts: list[RenderableType] = [Text(heading(entry), "bold"), Text(entry.table.caption)]
    for group in entry.groups:
        parts += [Text(f"\n{group.label}", "bold"), _group(entry, group)]
    parts += [Text(f"{number}) {note}") for number, note in enumerate(entry.notes, 1)]
    return Group(*parts, *map(Text, entry.remarks))


def _listing(entry: Listing) -> rich.table.Table:
    made = table(*entry.head)
    for row in entry.rows:
        made.add_row(*row)
    return made


def _group(entry: Comparison, group: Heading) -> rich.table.Table:
    """The columns of one group: of each method three lines, ours, the paper's and the difference."""
    labels = [column.label for column in entry.table.columns]
    made = table(entry.table.stub, "", *labels, right=tuple(labels), whole=("",))
    section = ""
    for row in entry.rows:
        if row.section != section:
            section = row.section
            made.add_row(Text(section, "bold"))
        cells = [entry.cells.get((row.name, group.name, column.name)) for column in entry.table.columns]
        indent = "  " if section else ""
        made.add_row(f"{indent}{row.label}", _tags(cells), *map(_cell, cells))
    return made


def _tags(cells: list[Shown | None]) -> str:
    """What the lines of a method are: those that any of its cells has."""
    known = [shown for shown in cells if shown is not None]
    printed = any(shown.cell.printed is not None for shown in known)
    compared = any(shown.difference is not None for shown in known)
    return "\n".join(["ours", *["paper"] * printed, *["diff"] * compared])


def _cell(shown: Shown | None) -> Text:
    if shown is None:
        return Text()
    note = "" if shown.note is None else f" {shown.note})"
    lines = [Text(figure(shown.ours), STYLES[shown.mark]) + Text("".join(shown.signs) + note)]
    if shown.cell.printed is not None:
        lines.append(Text(figure(shown.cell.printed), STYLES[shown.cell.mark]))
    if shown.difference is not None:
        lines.append(Text(points(shown.difference), COLOURS[bin_of(shown)]))
    return Text("\n").join(lines)


def as_json(entry: Entry) -> dict[str, Any]:
    """The same for machines; every figure of ours with the keys of the rows it comes from."""
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
        "cells": [_cell_json(entry, shown) for shown in entry.cells.values()],
        "notes": list(entry.notes),
        "remarks": list(entry.remarks),
    }


def _cell_json(entry: Comparison, shown: Shown) -> dict[str, Any]:
    row, group, column = shown.cell.place
    return {
        "row": row,
        "group": group,
        "column": column,
        "label": entry.label(shown.cell.place),
        "recipe": None if shown.cell.wanted is None else shown.cell.wanted.recipe,
        "printed": shown.cell.printed,
        "printed_mark": shown.cell.mark,
        "oracle": shown.cell.oracle,
        "ours": shown.ours,
        "low": shown.low,
        "high": shown.high,
        "trainings": len(shown.rows),
        "n": shown.rows[0].n if shown.rows else None,
        "difference": shown.difference,
        "mark": shown.mark,
        "signs": list(shown.signs),
        "note": shown.note,
        "result_rows": [result.key for result in shown.rows],
    }
