"""The paper's claims, and how one is checked: by a list of comparisons that hold, fail, or lack a number.

All must hold. A comparison that fails for a network with a shortened training is shown, but decides nothing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from soap.paper.comparison import ComparedCell
from soap.paper.tables import NUMBER_TABLES, Place, read_toml

MissingNumber = tuple[str, str]
"""What was not measured, and under which attack, e.g. ("mnist-fcn-pgd-at", "CW"); the second may be empty."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. section: of the paper, e.g. "4.1". about: names of tables and figures.

    rule: when it holds; empty for a description. numbers, mostly: comparisons within tables, see `claims.toml`.
    """

    name: str
    text: str
    section: str
    about: tuple[str, ...]
    rule: str = ""
    numbers: Sequence[Mapping[str, Any]] = ()
    mostly: float | None = None

    @property
    def place(self) -> str:
        """Where the paper states it: "section 4.1"."""
        return f"section {self.section}"


CLAIMS: dict[str, Claim] = {
    name: Claim(name=name, **{**entry, "about": tuple(entry["about"])})
    for name, entry in read_toml("claims.toml").items()
}
"""Every claim by name, in the paper's order."""


def claims_about(name: str) -> tuple[Claim, ...]:
    """The claims about a table or figure."""
    return tuple(claim for claim in CLAIMS.values() if name in claim.about)


@dataclass(frozen=True, kw_only=True)
class ClaimPart:
    """One comparison. held: None if a number is missing. words: the numbers. subject: the network or method.

    short: the subject was trained for fewer epochs than its recipe's.
    """

    held: bool | None
    short: bool = False
    subject: str = ""
    words: str = ""
    missing: tuple[MissingNumber, ...] = ()


@dataclass(frozen=True)
class ClaimVerdict:
    """The result of all parts of a claim."""

    parts: tuple[ClaimPart, ...]

    @property
    def held(self) -> bool | None:
        """False if a part with a full training fails; else None if a part is undecided; else True."""
        found = [None if part.held is False and part.short else part.held for part in self.parts]
        return False if False in found else None if None in found else True

    @property
    def against(self) -> str:
        """Numbers of the parts that fail and decide; empty if there is none."""
        return self._words(False, short=False)

    @property
    def evidence_by_kind(self) -> dict[str, str]:
        """All numbers by what they show, those against the claim first, and what is missing."""
        missing = _grouped(missing for part in self.parts for missing in part.missing)
        found = {
            "Against it": self.against,
            "Against it after a short training": self._words(False, short=True),
            "For it": self._words(True),
            "So far": self._words(None),
            "Missing": ", ".join(f"{what} ({', '.join(kinds)})" if any(kinds) else what for what, kinds in missing),
        }
        return {head: text for head, text in found.items() if text}

    @property
    def evidence(self) -> str:
        """The same as one text."""
        return " ".join(f"{head}: {text}." for head, text in self.evidence_by_kind.items())

    def _words(self, held: bool | None, short: bool | None = None) -> str:
        """'FCN: PGD 61.49 against PGD AT 57.07, CW ...; CNN: ...'."""
        chosen = [part for part in self.parts if part.held is held and short in (None, part.short) and part.words]
        found = _grouped((part.subject, part.words) for part in chosen)
        return "; ".join(f"{subject}: {', '.join(words)}" if subject else "; ".join(words) for subject, words in found)


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """The second items of the pairs, without duplicates, by the first item; order is kept."""
    found: dict[str, dict[str, None]] = {}
    for first, second in pairs:
        found.setdefault(first, {})[second] = None
    return [(first, [*seconds]) for first, seconds in found.items()]


# --- Claims about numbers of tables: checked on our numbers and on the printed ones -----------------------------------

ROUNDING_POINTS = 1e-9

TableNumbers = Mapping[str, Mapping[Place, ComparedCell]]
"""Numbers by the table's name, then by the cell's place."""

PRINTED: TableNumbers = {
    name: {place: ComparedCell(cell=cell, ours=cell.printed) for place, cell in table.cells.items()}
    for name, table in NUMBER_TABLES.items()
}
"""The paper's own numbers, so that a claim can be checked against them as well."""


@dataclass(frozen=True, kw_only=True)
class TableNumber:
    """A number with its names; NaN if it is not measured.

    method: "PGD AT". network: "FCN". attack: "CW". short: its network was trained for fewer epochs than the recipe's.
    missing: measurements that are needed for it.
    """

    value: float
    signs: str
    short: bool
    method: str
    network: str
    attack: str
    missing: tuple[MissingNumber, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the number was measured."""
        return not math.isnan(self.value)

    def __str__(self) -> str:
        return f"{self.value:.2f}{self.signs}"


def table_parts(claim: Claim, tables: TableNumbers) -> list[ClaimPart]:
    """The comparisons of a claim, or one of them all if it holds when most of them do."""
    parts = [part for line in claim.numbers for part in _compared(line, tables)]
    return parts if claim.mostly is None else [mostly(parts, claim.mostly)]


def _compared(line: Mapping[str, Any], tables: TableNumbers) -> Iterator[ClaimPart]:
    """The comparisons of one line of `claims.toml`."""
    take = line.get("take", "each")
    for row in line["rows"]:
        for group in line["groups"]:
            for columns in [[column] for column in line["columns"]] if take == "each" else [line["columns"]]:

                def taken(row: str, columns: Sequence[str], group: str = group) -> TableNumber:
                    return _combined([_number(tables, line["table"], (row, group, one)) for one in columns], take)

                rivals = [taken(rival, columns) for rival in line.get("rivals", ())]
                rivals += [taken(row, [column]) for column in line.get("against", ())]
                yield _part(taken(row, columns), rivals, line)


def _number(tables: TableNumbers, table: str, place: Place) -> TableNumber:
    """The number in a cell of a table."""
    printed = NUMBER_TABLES[table]
    line, columns, head = printed.headings(place)
    if printed.measure == "success":  # rows are attacks on networks, columns are methods
        method, network, attack = head.label, line.label, line.section
    else:
        method, network, attack = line.section or line.label, columns.label, head.label
    cell = printed.cells[place]
    found = tables.get(table, {}).get(place, ComparedCell(cell=cell))
    needs = (f"{method} (not part of this project)", "") if cell.query is None else (cell.query.needs_text, attack)
    return TableNumber(
        value=math.nan if found.ours is None else found.ours,
        signs="".join(found.signs),
        short=found.short,
        method=method,
        network=network,
        attack=attack,
        missing=(needs,) if found.ours is None else (),
    )


def _combined(numbers: Sequence[TableNumber], take: str) -> TableNumber:
    """One number for several attacks: their mean, known if all are, or the least of those that are known."""
    if len(numbers) == 1:
        return numbers[0]
    missing = tuple(one for number in numbers for one in number.missing)
    if take == "mean":
        mean = fmean(number.value for number in numbers)
        return replace(numbers[0], value=mean, signs="", attack="mean of the attacks", missing=missing)
    least = min((number for number in numbers if number.known), key=lambda one: one.value, default=numbers[0])
    return replace(least, missing=missing)


def _part(own: TableNumber, rivals: Sequence[TableNumber], line: Mapping[str, Any]) -> ClaimPart:
    """Whether a number is above its rivals, or within its limit; a failure is final whatever number is missing."""
    missing = tuple(one for number in (own, *rivals) for one in number.missing)
    known = [rival for rival in rivals if rival.known]
    if not own.known or (rivals and not known):
        return ClaimPart(held=None, missing=missing)
    if rivals:
        lower = line.get("lower", False)
        best = (min if lower else max)(known, key=lambda rival: rival.value)
        if "share" in line:
            held = own.value >= line["share"] * best.value
        else:
            held = (-1 if lower else 1) * (own.value - best.value) >= line.get("by", 0.0) - ROUNDING_POINTS
        words = f" against {best.attack if best.method == own.method else best.method} {best}"
    elif "least" in line:
        held, words = own.value >= line["least"] - ROUNDING_POINTS, f", wanted at least {line['least']:g}"
    else:
        held, words = own.value < line["most"], f", wanted below {line['most']:g}"
    undecided = held and bool(missing)
    return ClaimPart(
        held=None if undecided else held is line.get("wanted", True),
        short=own.short,
        subject=f"{own.network}, {own.method}",
        words=f"{own.attack} {own}{words}",
        missing=missing if undecided else (),
    )


def mostly(parts: Sequence[ClaimPart], share: float) -> ClaimPart:
    """One part that holds if at least this share of `parts` hold: for claims that say "typically"."""
    need, sure = share * len(parts), sum(part.held is True for part in parts)
    possible = sum(part.held is not False for part in parts)
    against = [f"{part.subject} ({part.words})" for part in parts if part.held is False]
    words = f"{sure} of {len(parts)} cases" + (f", but not {', '.join(against)}" if against else "")
    missing = tuple(one for part in parts for one in part.missing)
    held = True if sure >= need else False if possible < need else None
    return ClaimPart(held=held, words=words if sure or against else "", missing=missing)
