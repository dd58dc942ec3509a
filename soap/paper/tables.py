"""The paper's tables as data: printed numbers and texts from `printed/*.toml`, and the row that fills each cell."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from soap import recipes
from soap.evaluation import PAPER
from soap.paper.black_box import PROTOCOL as BLACK_BOX
from soap.paper.black_box import SUBSTITUTES
from soap.recipes import generative
from soap.results import Row, wilson
from soap.specs import UNDEFENDED, AttackSpec, DefenceSpec, attack_spec

TEST_IMAGES = 10_000
MIN_IMAGES = 1_000
"""A row on the first images of the test set fills a cell if it has at least so many of them."""

Mark = Literal["", "best", "second"]
Tolerance = Literal["close", "close or better", "any"]
Place = tuple[str, str, str]
"""Names of a cell's row, group and column."""


@dataclass(frozen=True, kw_only=True)
class CellQuery:
    """The result row that fills a cell: the paper's settings on the whole test set.

    recipe: the model's. attack: a name of `PAPER` (transfer protocol), or of `SUBSTITUTES` (black-box protocol, Table
    4). eps_pfy: "none" (bare classifier; the paper's eps = 0), "min-aux" or "oracle". gradient: for label consistency,
    replaces the recipe's gradient. prior: recipe of a generative model; its purifier replaces SOAP. measure:
    "accuracy", or a key of the row's measures such as "success". n: size of the whole test set, without the images that
    a black-box attacker starts from.
    """

    recipe: str
    attack: str
    eps_pfy: str = UNDEFENDED
    gradient: str | None = None
    prior: str | None = None
    measure: str = "accuracy"
    n: int = TEST_IMAGES

    @property
    def protocol(self) -> str:
        """Protocol of the row."""
        return BLACK_BOX if self.attack in SUBSTITUTES else "transfer"

    @property
    def settings(self) -> AttackSpec:
        """The attack as rows store it."""
        known = SUBSTITUTES if self.attack in SUBSTITUTES else PAPER[recipes.read(self.recipe).data]
        return attack_spec(self.attack, known[self.attack])

    @property
    def defence(self) -> DefenceSpec:
        """The purifier as rows store it."""
        if self.prior is not None:
            return generative.purifier_spec(generative.read(self.prior))
        return recipes.purifier_spec(recipes.read(self.recipe), self.eps_pfy, self.gradient)

    @property
    def needs(self) -> tuple[str, ...]:
        """Recipes whose weights are needed to measure it."""
        return (self.recipe,) if self.prior is None else (self.recipe, self.prior)

    @property
    def needs_text(self) -> str:
        """The same as text: 'mnist-cnn-dr', 'mnist-cnn-no-def behind defense-gan-mnist'."""
        return " behind ".join(self.needs)

    @property
    def purifier_text(self) -> str:
        """The purifier as text: 'min-aux (stop)', 'defense-gan-mnist'."""
        return self.prior or self.eps_pfy + ("" if self.gradient is None else f" ({self.gradient})")

    @property
    def epochs(self) -> int:
        """Epochs of the recipe; the training behind a row may be shorter."""
        return recipes.read(self.recipe).training.epochs

    def matching(self, rows: Iterable[Row]) -> list[Row]:
        """Rows of this model, attack and purifier, on any number of images."""
        key = (self.protocol, self.recipe, self.attack)
        named = [row for row in rows if (row.protocol, row.model, row.attack.name) == key]
        if not named:  # most cells of an empty table; this avoids reading the recipe
            return []
        exact = (recipes.read(self.recipe).data, self.settings, self.defence)
        found = [row for row in named if (row.data, row.attack, row.defence) == exact]
        return [row for row in found if self.measure == "accuracy" or self.measure in row.measures]

    def found_in(self, rows: Iterable[Row]) -> list[Row]:
        """Rows that fill the cell: those with the largest number of images, one or more for each training."""
        found = [row for row in self.matching(rows) if row.n == self.n or self._has_enough_images(row)]
        most = max((row.n for row in found), default=0)
        return [row for row in found if row.n == most]

    def value(self, row: Row) -> float:
        """The number in the cell, in per cent."""
        return 100 * (row.accuracy if self.measure == "accuracy" else row.measures[self.measure])

    def interval(self, row: Row) -> tuple[float, float]:
        """95 % Wilson interval of the value, in per cent."""
        low, high = wilson(round(self.value(row) * row.n / 100), row.n)
        return 100 * low, 100 * high

    def _has_enough_images(self, row: Row) -> bool:
        first = self.protocol != BLACK_BOX and row.provenance.images == f"0..{row.n - 1} of test"
        return first and MIN_IMAGES <= row.n < self.n


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
class TextTable:
    """A table of text: `head` above `rows`, notes below. Tables 5 to 7 describe the networks as they are built."""

    name: str
    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    progress, missing_text, recipes = "as built", "", ()

    @property
    def table(self) -> "TextTable":
        """Itself: a table of text is shown as it is."""
        return self


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

    @property
    def recipes(self) -> tuple[str, ...]:
        """Recipes whose weights are needed to measure it."""
        return tuple(dict.fromkeys(recipe for query in self.queries for recipe in query.needs))

    def headings(self, place: Place) -> tuple[Heading, Heading, Heading]:
        """Row, group and column of a cell."""
        row, group, column = (
            next(heading for heading in headings if heading.name == name)
            for name, headings in zip(place, (self.rows, self.groups, self.columns), strict=True)
        )
        return row, group, column


def read(name: str) -> PaperTable | TextTable:
    """The table of `printed/NAME.toml`."""
    content = read_toml(f"printed/{name}.toml")
    if "head" in content:
        content |= {key: tuple(content.get(key, ())) for key in ("head", "notes")}
        return TextTable(**{**content, "rows": tuple(map(tuple, content["rows"]))})
    fields: dict[str, Any] = {key: content[key] for key in ("name", "title", "caption", "stub", "measure")}
    fields |= {key: tuple(map(_heading, content[key])) for key in ("groups", "columns", "rows")}
    return PaperTable(**fields, cells={cell.place: cell for cell in _cells(content)})


def explanation(table: str, place: Place) -> str | None:
    """Why our number differs from the printed one, from `footnotes.toml`: the text of the most specific key."""
    row, group, column = place
    keys = (f"{table}/{row}/{group}/{column}", f"{table}/{row}/{group}", f"{row}/{group}")
    return next((FOOTNOTES[key] for key in keys if key in FOOTNOTES), None)


def read_toml(path: str) -> dict[str, Any]:
    """A TOML file of this package."""
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
    attack = f"substitute-{settings['substitute']}" if "substitute" in settings else settings["attack"]
    return CellQuery(
        recipe=recipe,
        attack=attack,
        eps_pfy=eps_pfy,
        gradient=gradient,
        prior=prior,
        measure=content["measure"],
        n=TEST_IMAGES - (SUBSTITUTES[attack].seeds if attack in SUBSTITUTES else 0),
    )


def _rule(settings: Mapping[str, str], measure: str) -> Tolerance:
    method = settings.get("method", "")
    if method == "fgsm-at":
        return "any"
    purifies = method in ("dr", "rp", "lc") or "prior" in settings
    # A success rate describes the attack: neither a higher nor a lower one is better.
    return "close or better" if purifies and measure == "accuracy" else "close"


TABLES: dict[str, PaperTable | TextTable] = {name: read(name) for name in (f"table-{n}" for n in range(1, 10))}
"""Every table of the paper by name, in the paper's order."""

NUMBER_TABLES = {name: table for name, table in TABLES.items() if isinstance(table, PaperTable)}

FOOTNOTES: dict[str, str] = read_toml("footnotes.toml")
"""Texts by "table/row/group/column", "table/row/group" or "row/group"."""
