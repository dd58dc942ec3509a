"""Numbers of the paper's tables, ours or the printed ones, and how two of them compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from soap.paper.tables import TABLES, Heading, Table
from soap.paper.verdicts.parts import Lack, Part

ROUNDING = 1e-9


@runtime_checkable
class Measured(Protocol):
    """A cell with a number in it, in per cent. signs: what is less about it than the paper did."""

    @property
    def ours(self) -> float | None:
        """The number; None where nothing was measured."""

    @property
    def signs(self) -> tuple[str, ...]:
        """Signs to show behind it."""

    @property
    def short(self) -> bool:
        """Whether its network was trained for fewer epochs than the recipe's."""


Tables = Mapping[str, Mapping[tuple[str, str, str], Measured]]
"""By a table's name, then by the names of row, group and column."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A number of the paper's own."""

    ours: float | None
    signs: tuple[str, ...] = ()
    short: bool = False


PRINTED: Tables = {
    name: {place: Printed(ours=cell.printed) for place, cell in table.cells.items()}
    for name, table in TABLES.items()
    if isinstance(table, Table)
}
"""The paper's numbers, so that a claim can be held against them, too."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number with its names. method: "PGD AT"; network: "FCN"; attack: "CW"; lack: what would fill it.

    short: its network was trained for fewer epochs than the recipe's.
    """

    value: float | None
    signs: str
    short: bool
    method: str
    network: str
    attack: str
    lack: Lack

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.2f}{self.signs}"


def number(tables: Tables, table: str, row: str, group: str, column: str) -> Number:
    """The number in a cell of a table."""
    meant = TABLES[table]
    if not isinstance(meant, Table):
        raise KeyError(f"{table} has no numbers")
    cell, line = meant.cells[row, group, column], _heading(meant.rows, row)
    columns, head = _heading(meant.groups, group), _heading(meant.columns, column)
    if meant.measure == "success":  # the rows are attacks on networks, the columns methods
        method, network, attack = head.label, line.label, line.section
    else:
        method, network, attack = line.section or line.label, columns.label, head.label
    found, wanted = tables.get(table, {}).get(cell.place), cell.wanted
    absent = f"{method} (not part of this project)"
    return Number(
        value=None if found is None else found.ours,
        signs="" if found is None else "".join(found.signs),
        short=found is not None and found.short,
        method=method,
        network=network,
        attack=attack,
        lack=(absent, "") if wanted is None else (" behind ".join(wanted.needs), attack),
    )


def _heading(headings: Sequence[Heading], name: str) -> Heading:
    return next(heading for heading in headings if heading.name == name)


def above(ours: Number, rivals: Sequence[Number], by: float) -> Part:
    """`ours` at least `by` points above every rival; a negative `by` allows to be as much below."""
    known = [(rival.value, rival) for rival in rivals if rival.value is not None]
    lacks = lacking(ours, *rivals)
    if ours.value is None or not known:
        return Part(held=None, lacks=lacks)
    best, rival = max(known, key=lambda pair: pair[0])
    return Part(
        held=decided(ours.value - best >= by - ROUNDING, lacks),
        short=ours.short,
        subject=f"{ours.network}, {ours.method}",
        words=f"{ours.attack} {ours} against {rival.method} {rival}",
        lacks=lacks,
    )


def lacking(*numbers: Number) -> tuple[Lack, ...]:
    """What would fill those that are empty."""
    return tuple(each.lack for each in numbers if each.value is None)


def decided(held: bool, lacks: Sequence[Lack]) -> bool | None:
    """What fails so far fails for good; what holds so far is open while something is lacking."""
    return None if held and lacks else held
