"""The tables of the paper as data: printed numbers from `printed/*.toml`, and what would fill each cell with ours."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from soap.paper.architectures import LISTINGS, Listing
from soap.paper.black_box import PREFIX, BlackBox
from soap.paper.wanted import Wanted
from soap.specs import UNDEFENDED

Mark = Literal["", "best", "second"]
Rule = Literal["close", "close or better", "any"]


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A row, a column, or a group of columns. section: the heading that rows of one method share."""

    name: str
    label: str
    section: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table. printed: the paper's, in per cent. mark: how the paper marks it.

    wanted: what fills it with ours; None for a method that is not part of this project. oracle: chosen with the
    label, so never the best. rule: how near ours is to be to the printed number; adversarial training with FGSM leaks
    labels, which makes its figures accidents: "any".
    """

    row: str
    group: str
    column: str
    printed: float | None
    mark: Mark
    wanted: Wanted | None
    oracle: bool
    rule: Rule

    @property
    def place(self) -> tuple[str, str, str]:
        """Names of row, group and column."""
        return self.row, self.group, self.column


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of figures in per cent: rows are methods, columns attacks, in one group of columns for each network.

    stub: what the rows are. measure: "accuracy", or "success" of the attack.
    """

    name: str
    title: str
    caption: str
    stub: str
    measure: str
    groups: tuple[Heading, ...]
    columns: tuple[Heading, ...]
    rows: tuple[Heading, ...]
    cells: Mapping[tuple[str, str, str], Cell]

    @property
    def wanted(self) -> list[Wanted]:
        """What is to be measured for it, in the order of reading."""
        return [cell.wanted for cell in self.cells.values() if cell.wanted is not None]


def read(name: str) -> Table:
    """The table whose numbers lie in `printed/NAME.toml`."""
    file = resources.files(__package__) / "printed" / f"{name}.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return Table(
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
                wanted=_wanted(content, settings),
                oracle=row.get("oracle", False),
                rule=_rule(settings, content["measure"]),
            )


def _wanted(content: Mapping[str, Any], settings: Mapping[str, str]) -> Wanted | None:
    if "method" not in settings:
        return None
    recipe = f"{content['data']}-{settings['network']}-{settings['method']}"
    eps_pfy, gradient, prior = settings.get("eps_pfy", UNDEFENDED), settings.get("gradient"), settings.get("prior")
    if "substitute" in settings:
        attack = f"{PREFIX}{settings['substitute']}"
        return BlackBox(recipe=recipe, attack=attack, eps_pfy=eps_pfy, gradient=gradient)
    attack, measure = settings["attack"], content["measure"]
    return Wanted(recipe=recipe, attack=attack, eps_pfy=eps_pfy, gradient=gradient, prior=prior, measure=measure)


def _rule(settings: Mapping[str, str], measure: str) -> Rule:
    method = settings.get("method", "")
    if method == "fgsm-at":
        return "any"
    purifies = method in ("dr", "rp", "lc") or "prior" in settings
    # A success rate is the attack's: neither side of it is the better one.
    return "close or better" if purifies and measure == "accuracy" else "close"


def _footnotes() -> dict[str, str]:
    file = resources.files(__package__) / "footnotes.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def explanation(table: str, place: tuple[str, str, str]) -> str | None:
    """Why ours differs from the printed number, from `footnotes.toml`: the most particular of the keys that fit.

    place: names of row, group and column.
    """
    row, group, column = place
    keys = (f"{table}/{row}/{group}/{column}", f"{table}/{row}/{group}", f"{row}/{group}")
    return next((FOOTNOTES[key] for key in keys if key in FOOTNOTES), None)


TABLES: dict[str, Table | Listing] = {
    name: LISTINGS[name] if name in LISTINGS else read(name) for name in (f"table-{number}" for number in range(1, 10))
}
"""Every table of the paper by its name, in the paper's order."""

FOOTNOTES = _footnotes()
"""Texts by "table/row/group/column", "table/row/group" or "row/group"."""
