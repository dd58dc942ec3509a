"""Our numbers beside the paper's, cell by cell: means, intervals, differences, marks, footnotes and their wording."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from soap.paper.rows import training_epochs
from soap.paper.tables import Cell, Heading, PaperTable, Place, TextTable, explanation
from soap.results import Row

TOLERANCE_POINTS = 3.0
"""A larger difference from the printed number needs a footnote."""

UNEXPLAINED = "beyond 3 points, not explained yet"
SHORTER, FEWER, UNKNOWN = "†", "§", "‡"
SIGNS = {
    SHORTER: "trained for fewer epochs than the recipe's",
    FEWER: "measured on the first images of the test set only",
    UNKNOWN: "its rows do not say how long the network was trained",
}


@dataclass(frozen=True, kw_only=True)
class ComparedCell:
    """A cell with our number in it, in per cent.

    rows: one row a training; `ours` is their mean; empty if nothing was measured. low, high: the 95 % interval of one
    training, or the smallest and largest of several. mark: "best", "second" or "". signs: keys of `SIGNS`. note: number
    of its footnote.
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
        """Ours minus the paper's, in points."""
        return None if self.ours is None or self.cell.printed is None else self.ours - self.cell.printed

    @property
    def needs_footnote(self) -> bool:
        """Whether the difference is larger than the cell's rule allows."""
        off = self.difference or 0.0
        return {
            "close": abs(off) > TOLERANCE_POINTS,
            "close or better": off < -TOLERANCE_POINTS,
            "any": False,
        }[self.cell.rule]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table with our numbers in it. notes: footnotes, numbered from 1. remarks: the meaning of the signs used."""

    table: PaperTable
    groups: Sequence[Heading]
    rows: Sequence[Heading]
    cells: Mapping[Place, ComparedCell]
    notes: Sequence[str] = ()
    remarks: Sequence[str] = ()

    @property
    def wanted(self) -> int:
        """Number of cells that this project can fill."""
        return sum(compared.cell.query is not None for compared in self.cells.values())

    @property
    def done(self) -> int:
        """Number of cells that are filled."""
        return sum(compared.ours is not None for compared in self.cells.values())

    @property
    def progress(self) -> str:
        """'3 of 5': cells that are filled, of those that can be."""
        return f"{self.done} of {self.wanted}"

    @property
    def missing(self) -> dict[str, int]:
        """Number of empty cells by recipe (with the prior's recipe, if it has one)."""
        empty = [compared.cell.query for compared in self.cells.values() if compared.ours is None]
        return dict(Counter(query.needs_text for query in empty if query is not None))

    @property
    def missing_text(self) -> str:
        """The same as text, grouped by data set: 'mnist: fcn-no-def 5, ...'."""
        by_data: dict[str, list[str]] = {}
        for recipe, cells in self.missing.items():
            data, _, rest = recipe.partition("-")
            by_data.setdefault(data, []).append(f"{rest} {cells}")
        return "; ".join(f"{data}: {', '.join(rests)}" for data, rests in by_data.items())

    def lines(self, group: Heading) -> Iterator[tuple[Heading, bool, list[ComparedCell | None]]]:
        """Every row with its cells in a group of columns, and whether it is the first of its section."""
        section = ""
        for row in self.rows:
            cells = [self.cells.get((row.name, group.name, column.name)) for column in self.table.columns]
            yield row, row.section != section, cells
            section = row.section

    def label(self, place: Place) -> str:
        """A cell as text: 'SOAP-DR ε = 0, FCN, PGD'."""
        row, group, column = self.table.headings(place)
        return f"{f'{row.section} {row.label}'.strip()}, {group.label}, {column.label}"


Entry = Comparison | TextTable
"""A table as it is shown."""


def compare_all(tables: Iterable[PaperTable | TextTable], rows: Sequence[Row], only: str = "") -> list[Entry]:
    """The tables filled from `rows`; tables of text are unchanged."""
    return [compare(entry, rows, only=only) if isinstance(entry, PaperTable) else entry for entry in tables]


def compare(table: PaperTable, rows: Iterable[Row], *, only: str = "") -> Comparison:
    """The table filled from `rows`.

    only: keep rows and groups with a cell of a recipe that starts with this text; marks are those of the whole table.
    """
    rows = list(rows)
    cells = {place: _filled(cell, rows) for place, cell in table.cells.items()}
    if table.measure == "accuracy":  # a success rate has no best
        for group in table.groups:
            for column in table.columns:
                _mark(cells, group.name, column.name)
    cells = {place: compared for place, compared in cells.items() if _kept(compared.cell, only)}
    here = Comparison(
        table=table,
        groups=[group for group in table.groups if any(place[1] == group.name for place in cells)],
        rows=[row for row in table.rows if any(place[0] == row.name for place in cells)],
        cells=cells,
    )
    return _with_footnotes(here)


def _kept(cell: Cell, only: str) -> bool:
    return not only or (cell.query is not None and any(name.startswith(only) for name in cell.query.needs))


def _filled(cell: Cell, rows: list[Row]) -> ComparedCell:
    query = cell.query
    found = _one_per_training(query.found_in(rows)) if query is not None else []
    if query is None or not found:
        return ComparedCell(cell=cell)
    values = [query.value(row) for row in found]
    low, high = query.interval(found[0]) if len(found) == 1 else (min(values), max(values))
    length = training_epochs(found[0])
    applies = {
        SHORTER: length is not None and length < query.epochs,
        FEWER: found[0].n < query.n,
        UNKNOWN: length is None,
    }
    signs = tuple(sign for sign in SIGNS if applies[sign])
    return ComparedCell(cell=cell, rows=tuple(found), ours=sum(values) / len(values), low=low, high=high, signs=signs)


def _one_per_training(rows: list[Row]) -> list[Row]:
    """The latest row of each training; only trainings of the longest schedule, so that the mean is comparable."""
    latest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.provenance.date):
        latest[row.provenance.weights_sha256] = row
    longest = max((training_epochs(row) or 0 for row in latest.values()), default=0)
    return [row for row in latest.values() if (training_epochs(row) or 0) == longest]


def _mark(cells: dict[Place, ComparedCell], group: str, column: str) -> None:
    """Mark the best and second best of a column, if every row that has a printed number is filled."""
    fair = {place: found for place, found in cells.items() if place[1:] == (group, column) and not found.cell.oracle}
    if any(c.ours is None for c in fair.values() if c.cell.printed is not None and c.cell.query is not None):
        return
    values = {place: round(found.ours, 2) for place, found in fair.items() if found.ours is not None}
    for mark, value in zip(("best", "second"), sorted({*values.values()}, reverse=True), strict=False):
        for place in (place for place, own in values.items() if own == value):
            cells[place] = replace(cells[place], mark=mark)


def _with_footnotes(here: Comparison) -> Comparison:
    """The comparison with one footnote for each text, and a remark for each sign."""
    by_text: dict[str, list[Place]] = {}
    for place, compared in here.cells.items():
        if compared.needs_footnote:
            by_text.setdefault(explanation(here.table.name, place) or UNEXPLAINED, []).append(place)
    numbers = {place: number for number, places in enumerate(by_text.values(), 1) for place in places}
    cells = {place: replace(compared, note=numbers.get(place)) for place, compared in here.cells.items()}
    notes = []
    for text, places in by_text.items():
        offs = [f"{here.label(place)} {points(cells[place].difference)}" for place in places]
        notes.append(f"{'; '.join(offs)}: {text.strip().rstrip('.')}.")
    remarks = [f"{sign} {words}: {details}." for sign, words in SIGNS.items() if (details := _details(cells, sign))]
    return replace(here, cells=cells, notes=notes, remarks=remarks)


def _details(cells: Mapping[Place, ComparedCell], sign: str) -> str:
    """The recipes that a sign is about, each once; for measurements on fewer images also the attacks."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for compared in cells.values():
        query = compared.cell.query
        if query is not None and sign in compared.signs:
            row = compared.rows[0]
            how = {
                SHORTER: f" {training_epochs(row)} of {query.epochs}",
                FEWER: f" {row.n:,} of {query.n:,}",
                UNKNOWN: "",
            }
            found.setdefault((query.needs_text, how[sign]), {})[row.attack.name] = None
    under = {key: f" under {'/'.join(attacks)}" if sign == FEWER else "" for key, attacks in found.items()}
    return ", ".join(f"{name}{under[name, how]}{how}" for name, how in found)


def points(difference: float | None) -> str:
    """A difference with its sign: '+0.34', '−3.10', '0.00'; empty for None."""
    if difference is None:
        return ""
    text = f"{difference:+.2f}"
    return "0.00" if text[1:] == "0.00" else text.replace("-", "\N{MINUS SIGN}")


def number_text(value: float | None) -> str:
    """A number in per cent with two decimals, or a dash for None."""
    return "\N{EN DASH}" if value is None else f"{value:.2f}"


def heading(entry: Entry) -> str:
    """'Table 2: CIFAR-10 under white-box attacks'."""
    return f"{display_name(entry.table.name)}: {entry.table.title}"


def display_name(name: str) -> str:
    """'Table 1' from 'table-1'."""
    return name.replace("-", " ").capitalize()
