"""Numbers of the paper's tables, ours or the printed ones, and how two of them compare."""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.paper.claims.checks import ClaimPart, MissingNumber, TableNumbers
from soap.paper.comparison import ComparedCell
from soap.paper.tables import TABLES, PaperTable

ROUNDING_POINTS = 1e-9

PRINTED: TableNumbers = {
    name: {place: ComparedCell(cell=cell, ours=cell.printed) for place, cell in table.cells.items()}
    for name, table in TABLES.items()
    if isinstance(table, PaperTable)
}
"""The paper's own numbers, so that a claim can be checked against them as well."""


@dataclass(frozen=True, kw_only=True)
class TableNumber:
    """A number with its names. method: "PGD AT". network: "FCN". attack: "CW". missing: the measurement that fills it.

    short: its network was trained for fewer epochs than the recipe's.
    """

    value: float | None
    signs: str
    short: bool
    method: str
    network: str
    attack: str
    missing: MissingNumber

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.2f}{self.signs}"


def number(tables: TableNumbers, table: str, row: str, group: str, column: str) -> TableNumber:
    """The number in a cell of a table."""
    printed = TABLES[table]
    if not isinstance(printed, PaperTable):
        raise KeyError(f"{table} has no numbers")
    place = row, group, column
    line, columns, head = printed.headings(place)
    if printed.measure == "success":  # rows are attacks on networks, columns are methods
        method, network, attack = head.label, line.label, line.section
    else:
        method, network, attack = line.section or line.label, columns.label, head.label
    found, query = tables.get(table, {}).get(place), printed.cells[place].query
    return TableNumber(
        value=None if found is None else found.ours,
        signs="" if found is None else "".join(found.signs),
        short=found is not None and found.short,
        method=method,
        network=network,
        attack=attack,
        missing=(f"{method} (not part of this project)", "") if query is None else (query.needs_text, attack),
    )


def above(ours: TableNumber, rivals: Sequence[TableNumber], by: float) -> ClaimPart:
    """Whether `ours` is at least `by` points above every rival; a negative `by` allows to be below."""
    known = [(rival.value, rival) for rival in rivals if rival.value is not None]
    missing = missing_of(ours, *rivals)
    if ours.value is None or not known:
        return ClaimPart(held=None, missing=missing)
    best, rival = max(known, key=lambda pair: pair[0])
    return ClaimPart(
        held=decided(ours.value - best >= by - ROUNDING_POINTS, missing),
        short=ours.short,
        subject=f"{ours.network}, {ours.method}",
        words=f"{ours.attack} {ours} against {rival.method} {rival}",
        missing=missing,
    )


def missing_of(*numbers: TableNumber) -> tuple[MissingNumber, ...]:
    """The measurements that fill the empty ones."""
    return tuple(each.missing for each in numbers if each.value is None)


def decided(held: bool, missing: Sequence[MissingNumber]) -> bool | None:
    """`held`, or None if it holds so far and a number is still missing; a failure is final."""
    return None if held and missing else held
