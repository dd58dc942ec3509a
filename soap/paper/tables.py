"""The paper's tables as data: printed numbers from `printed/*.toml`, and the result row that fills each cell."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from soap.paper.architectures import TEXT_TABLES, TextTable
from soap.paper.row_queries import SUBSTITUTE_PREFIX, BlackBoxQuery, CellQuery
from soap.specs import UNDEFENDED

Mark = Literal["", "best", "second"]
Tolerance = Literal["close", "close or better", "any"]
Place = tuple[str, str, str]
"""Names of a cell's row, group and column."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A row, a column, or a group of columns. section: a heading shared by the rows of one method."""

    name: str
    label: str
    section: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table. printed: the paper's number, in per cent. mark: how the paper marks it.

    query: the result row that fills it; None for a method that is not part of this project. oracle: the radius was
    chosen with the label, so the number is never marked as best. rule: how close our number must be to the printed
    one. FGSM adversarial training leaks labels and its accuracy varies at random: "any".
    """

    row: str
    group: str
    column: str
    printed: float | None
    mark: Mark
    query: CellQuery | None
    oracle: bool
    rule: Tolerance

    @property
    def place(self) -> Place:
        """Names of row, group and column."""
        return self.row, self.group, self.column


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of numbers in per cent: rows are methods, columns are attacks, with one group of columns a network.

    stub: title of the first column. measure: "accuracy", or "success" of the attack.
    """

    name: str
    title: str
    caption: str
    stub: str
    measure: str
    groups: tuple[Heading, ...]
    columns: tuple[Heading, ...]
    rows: tuple[Heading, ...]
    cells: Mapping[Place, Cell]

    @property
    def queries(self) -> list[CellQuery]:
        """The queries of all cells, in reading order."""
        return [cell.query for cell in self.cells.values() if cell.query is not None]

    def headings(self, place: Place) -> tuple[Heading, Heading, Heading]:
        """Row, group and column of a cell."""
        row, group, column = (
            next(heading for heading in headings if heading.name == name)
            for name, headings in zip(place, (self.rows, self.groups, self.columns), strict=True)
        )
        return row, group, column


def read(name: str) -> PaperTable:
    """The table of `printed/NAME.toml`."""
    content = _toml(f"printed/{name}.toml")
    return PaperTable(
        name=content["name"],
        title=content["title"],
        caption=content["caption"],
        stub=content["stub"],
        measure=content["measure"],
        groups=tuple(map(_heading, content["groups"])),
        columns=tuple(map(_heading, content["columns"])),
        rows=tuple(map(_heading, content["rows"])),
        cells={cell.place: cell for cell in _cells(content)},
    )


def explanation(table: str, place: Place) -> str | None:
    """Why our number differs from the printed one, from `footnotes.toml`: the text of the most specific key."""
    row, group, column = place
    keys = (f"{table}/{row}/{group}/{column}", f"{table}/{row}/{group}", f"{row}/{group}")
    return next((FOOTNOTES[key] for key in keys if key in FOOTNOTES), None)


def _toml(path: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / path).read_text(encoding="utf-8"))


def _heading(entry: Mapping[str, Any]) -> Heading:
    return Heading(**{key: entry[key] for key in ("name", "label", "section") if key in entry})


def _cells(content: Mapping[str, Any]) -> Iterator[Cell]:
    places = [(group, column) for group in content["groups"] for column in content["columns"]]
    for row in content["rows"]:
        numbers = row.get("printed", [None] * len(places))
        for (group, column), printed in zip(places, numbers, strict=True):
            place = f"{group['name']}/{column['name']}"
            settings = {**group.get("wants", {}), **column.get("wants", {}), **row.get("wants", {})}
            yield Cell(
                row=row["name"],
                group=group["name"],
                column=column["name"],
                printed=printed,
                mark="best" if place in row.get("best", ()) else "second" if place in row.get("second", ()) else "",
                query=_query(content, settings),
                oracle=row.get("oracle", False),
                rule=_rule(settings, content["measure"]),
            )


def _query(content: Mapping[str, Any], settings: Mapping[str, str]) -> CellQuery | None:
    if "method" not in settings:
        return None
    recipe = f"{content['data']}-{settings['network']}-{settings['method']}"
    eps_pfy, gradient, prior = settings.get("eps_pfy", UNDEFENDED), settings.get("gradient"), settings.get("prior")
    if "substitute" in settings:
        attack = f"{SUBSTITUTE_PREFIX}{settings['substitute']}"
        return BlackBoxQuery(recipe=recipe, attack=attack, eps_pfy=eps_pfy, gradient=gradient)
    attack, measure = settings["attack"], content["measure"]
    return CellQuery(recipe=recipe, attack=attack, eps_pfy=eps_pfy, gradient=gradient, prior=prior, measure=measure)


def _rule(settings: Mapping[str, str], measure: str) -> Tolerance:
    method = settings.get("method", "")
    if method == "fgsm-at":
        return "any"
    purifies = method in ("dr", "rp", "lc") or "prior" in settings
    # A success rate describes the attack: neither a higher nor a lower one is better.
    return "close or better" if purifies and measure == "accuracy" else "close"


TABLES: dict[str, PaperTable | TextTable] = {
    name: TEXT_TABLES[name] if name in TEXT_TABLES else read(name)
    for name in (f"table-{number}" for number in range(1, 10))
}
"""Every table of the paper by name, in the paper's order."""

FOOTNOTES: dict[str, str] = _toml("footnotes.toml")
"""Texts by "table/row/group/column", "table/row/group" or "row/group"."""
