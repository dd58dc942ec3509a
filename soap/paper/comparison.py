"""Ours beside the paper's, cell by cell: means, intervals, differences, marks and footnotes."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from soap.report.paper_tables import Cell, Figure, Heading, Place, Table
from soap.results import Row

TOLERANCE = 3.0
"""Points by which ours may differ from the printed number without a footnote."""

UNEXPLAINED = "beyond 3 points, not explained yet"
SHORTER, FEWER, UNTOLD = "†", "§", "‡"
SIGNS = {
    SHORTER: "trained for fewer epochs than the recipe's",
    FEWER: "measured on the first images of the test set only",
    UNTOLD: "its rows do not say how long the network was trained",
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A cell with ours in it, in per cent.

    rows: what ours is the mean of, one for each training; none where nothing was measured. low, high: the 95 % interval
    of one training, the smallest and the largest of several. mark: "best", "second" or "". signs: of `SIGNS`.
    note: number of its footnote.
    """

    cell: Cell
    rows: tuple[Row, ...] = ()
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    signs: tuple[str, ...] = ()
    note: int | None = None

    @property
    def short(self) -> bool:
        """Whether the network was trained for fewer epochs than the recipe's."""
        return SHORTER in self.signs

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        return None if self.ours is None or self.cell.printed is None else self.ours - self.cell.printed

    @property
    def strays(self) -> bool:
        """Whether the difference asks for an explanation."""
        off = self.difference or 0.0
        return {
            "close": abs(off) > TOLERANCE,
            "close or better": off < -TOLERANCE,
            "any": False,
        }[self.cell.rule]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table with ours in it. notes: footnotes, numbered from 1; remarks: what its signs stand for here."""

    table: Table
    groups: Sequence[Heading]
    rows: Sequence[Heading]
    cells: Mapping[Place, Shown]
    notes: Sequence[str] = field(default=())
    remarks: Sequence[str] = field(default=())

    @property
    def wanted(self) -> int:
        """How many cells ours is wanted for."""
        return sum(shown.cell.wanted is not None for shown in self.cells.values())

    @property
    def done(self) -> int:
        """How many have it."""
        return sum(shown.ours is not None for shown in self.cells.values())

    @property
    def missing(self) -> dict[str, int]:
        """Recipes (and the priors they stand behind) that cells are missing of, and how many."""
        empty = [shown.cell.wanted for shown in self.cells.values() if shown.ours is None]
        return dict(Counter(named(wanted) for wanted in empty if wanted is not None))

    def label(self, place: Place) -> str:
        """A cell in words: 'SOAP-DR ε = 0, FCN, PGD'."""
        row, group, column = (
            next(heading for heading in headings if heading.name == name)
            for name, headings in zip(place, (self.table.rows, self.table.groups, self.table.columns), strict=True)
        )
        return f"{f'{row.section} {row.label}'.strip()}, {group.label}, {column.label}"


def compare(
    table: Table, rows: Iterable[Row], explain: Callable[[str, Place], str | None], *, only: str = ""
) -> Comparison:
    """The table filled from `rows`.

    explain: the text of a footnote by the table's name and the cell's place. only: leaves out rows and groups without a
    cell of a recipe that starts so; marks are those of the whole table.
    """
    rows = list(rows)
    cells = {place: _filled(cell, rows) for place, cell in table.cells.items()}
    if table.measure == "accuracy":  # a success rate has no best
        for group in table.groups:
            for column in table.columns:
                _mark(cells, group.name, column.name)
    cells = {place: shown for place, shown in cells.items() if _kept(shown.cell, only)}
    here = Comparison(
        table=table,
        groups=[group for group in table.groups if any(place[1] == group.name for place in cells)],
        rows=[row for row in table.rows if any(place[0] == row.name for place in cells)],
        cells=cells,
    )
    return _explained(here, explain)


def _kept(cell: Cell, only: str) -> bool:
    return not only or (cell.wanted is not None and any(name.startswith(only) for name in cell.wanted.needs))


def named(wanted: Figure) -> str:
    """Whose figure it is: 'mnist-cnn-dr', 'mnist-cnn-no-def behind defense-gan-mnist'."""
    return " behind ".join(wanted.needs)


def _filled(cell: Cell, rows: list[Row]) -> Shown:
    wanted = cell.wanted
    found = _trainings(wanted.found_in(rows)) if wanted is not None else []
    if wanted is None or not found:
        return Shown(cell=cell)
    values = [wanted.value(row) for row in found]
    low, high = wanted.interval(found[0]) if len(found) == 1 else (min(values), max(values))
    length = epochs(found[0])
    told = {
        SHORTER: length is not None and length < wanted.epochs,
        FEWER: found[0].n < wanted.n,
        UNTOLD: length is None,
    }
    signs = tuple(sign for sign in SIGNS if told[sign])
    return Shown(cell=cell, rows=tuple(found), ours=sum(values) / len(values), low=low, high=high, signs=signs)


def _trainings(rows: list[Row]) -> list[Row]:
    """One row for each training, the latest; of the longest schedule alone, so that a mean is of like with like."""
    latest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.provenance.date):
        latest[row.provenance.weights_sha256] = row
    longest = max((epochs(row) or 0 for row in latest.values()), default=0)
    return [row for row in latest.values() if (epochs(row) or 0) == longest]


def epochs(row: Row) -> int | None:
    """How long the row's network was trained, as far as its provenance tells."""
    found = re.match(r"(\d+) epochs", row.provenance.training)
    return int(found[1]) if found else None


def _mark(cells: dict[Place, Shown], group: str, column: str) -> None:
    """Mark the best and the second best of a column in `cells`, once every row that the paper has too is filled."""
    fair = {place: shown for place, shown in cells.items() if place[1:] == (group, column) and not shown.cell.oracle}
    if any(s.ours is None for s in fair.values() if s.cell.printed is not None and s.cell.wanted is not None):
        return
    values = {place: round(shown.ours, 2) for place, shown in fair.items() if shown.ours is not None}
    for mark, value in zip(("best", "second"), sorted({*values.values()}, reverse=True), strict=False):
        for place in (place for place, own in values.items() if own == value):
            cells[place] = replace(cells[place], mark=mark)


def _explained(here: Comparison, explain: Callable[[str, Place], str | None]) -> Comparison:
    """With footnotes, one for each text, and the signs spelt out."""
    astray: dict[str, list[Place]] = {}
    for place, shown in here.cells.items():
        if shown.strays:
            astray.setdefault(explain(here.table.name, place) or UNEXPLAINED, []).append(place)
    numbers = {place: number for number, places in enumerate(astray.values(), 1) for place in places}
    cells = {place: replace(shown, note=numbers.get(place)) for place, shown in here.cells.items()}
    notes = []
    for text, places in astray.items():
        offs = [f"{here.label(place)} {points(cells[place].difference)}" for place in places]
        notes.append(f"{'; '.join(offs)}: {text.strip().rstrip('.')}.")
    remarks = [f"{sign} {said}: {details}." for sign, said in SIGNS.items() if (details := _details(cells, sign))]
    return replace(here, cells=cells, notes=notes, remarks=remarks)


def _details(cells: Mapping[Place, Shown], sign: str) -> str:
    """Whom the sign is about, once for each recipe; of what was measured on fewer images, under which attacks, too."""
    said: dict[tuple[str, str], dict[str, None]] = {}
    for shown in cells.values():
        wanted = shown.cell.wanted
        if wanted is not None and sign in shown.signs:
            row = shown.rows[0]
            how = {SHORTER: f" {epochs(row)} of {wanted.epochs}", FEWER: f" {row.n:,} of {wanted.n:,}", UNTOLD: ""}
            said.setdefault((named(wanted), how[sign]), {})[row.attack] = None
    under = {whom: f" under {'/'.join(attacks)}" if sign == FEWER else "" for whom, attacks in said.items()}
    return ", ".join(f"{name}{under[name, how]}{how}" for name, how in said)


def points(difference: float | None) -> str:
    """A difference with its sign: '+0.34', '−3.10', '0.00'; empty where there is none."""
    if difference is None:
        return ""
    text = f"{difference:+.2f}"
    return "0.00" if text[1:] == "0.00" else text.replace("-", "\N{MINUS SIGN}")
