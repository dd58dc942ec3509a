"""Claims about numbers of the paper's tables; they are checked on our numbers and on the printed ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from soap.paper.claims.checks import CLAIMS, ClaimPart, MissingNumber, TableCheck, TableNumbers, mostly
from soap.paper.comparison import ComparedCell
from soap.paper.tables import TABLES, PaperTable

ROUNDING_POINTS = 1e-9
KEPT_SHARE = 0.5
"""An effective defence keeps at least this share of its clean accuracy."""
EASY_PERCENT, SELDOM_PERCENT = 95.0, 50.0
"""Success rates of attacks."""
TYPICAL_SHARE, NEARLY_ALL_SHARE = 0.5, 0.75
"""Of the cases (attack and network)."""

ATTACKS, L2 = ("fgsm", "pgd", "cw", "df"), ("cw", "df")
SOAP_TASKS = (
    ("table-1", "fcn", ("dr",)),
    ("table-1", "cnn", ("dr",)),
    ("table-2", "resnet18", ("rp", "lc")),
    ("table-2", "wide-resnet28", ("rp", "lc")),
)
"""Table, group of columns, and SOAP's tasks on that network."""

NUMBER_TABLES = {name: table for name, table in TABLES.items() if isinstance(table, PaperTable)}
PRINTED: TableNumbers = {
    name: {place: ComparedCell(cell=cell, ours=cell.printed) for place, cell in table.cells.items()}
    for name, table in NUMBER_TABLES.items()
}
"""The paper's own numbers, so that a claim can be checked against them as well."""


@dataclass(frozen=True, kw_only=True)
class TableNumber:
    """A number with its names; NaN if it is not measured.

    method: "PGD AT". network: "FCN". attack: "CW". short: its network was trained for fewer epochs than the recipe's.
    needs: the measurement that fills the cell.
    """

    value: float
    signs: str
    short: bool
    method: str
    network: str
    attack: str
    needs: MissingNumber

    @property
    def known(self) -> bool:
        """Whether the number was measured."""
        return not math.isnan(self.value)

    def __str__(self) -> str:
        return f"{self.value:.2f}{self.signs}"


def number(tables: TableNumbers, table: str, row: str, group: str, column: str) -> TableNumber:
    """The number in a cell of a table."""
    printed, place = NUMBER_TABLES[table], (row, group, column)
    line, columns, head = printed.headings(place)
    if printed.measure == "success":  # rows are attacks on networks, columns are methods
        method, network, attack = head.label, line.label, line.section
    else:
        method, network, attack = line.section or line.label, columns.label, head.label
    cell = printed.cells[place]
    found = tables.get(table, {}).get(place, ComparedCell(cell=cell))
    return TableNumber(
        value=math.nan if found.ours is None else found.ours,
        signs="".join(found.signs),
        short=found.short,
        method=method,
        network=network,
        attack=attack,
        needs=(f"{method} (not part of this project)", "") if cell.query is None else (cell.query.needs_text, attack),
    )


def missing_of(*numbers: TableNumber) -> tuple[MissingNumber, ...]:
    """The measurements that fill the empty ones."""
    return tuple(each.needs for each in numbers if not each.known)


def decided(held: bool, missing: Sequence[MissingNumber]) -> bool | None:
    """`held`, or None if it holds so far and a number is still missing; a failure is final."""
    return None if held and missing else held


def above(ours: TableNumber, rivals: Sequence[TableNumber], by: float) -> ClaimPart:
    """Whether `ours` is at least `by` points above every rival; a negative `by` allows to be below."""
    missing, known = missing_of(ours, *rivals), [rival for rival in rivals if rival.known]
    if not ours.known or not known:
        return ClaimPart(held=None, missing=missing)
    best = max(known, key=lambda rival: rival.value)
    return ClaimPart(
        held=decided(ours.value - best.value >= by - ROUNDING_POINTS, missing),
        short=ours.short,
        subject=f"{ours.network}, {ours.method}",
        words=f"{ours.attack} {ours} against {best.method} {best}",
        missing=missing,
    )


def alone(own: TableNumber, held: bool, words: str, subject: str = "") -> ClaimPart:
    """A part about one number."""
    if not own.known:
        return ClaimPart(held=None, missing=missing_of(own))
    return ClaimPart(held=held, short=own.short, subject=subject, words=words)


def compared(lines: Sequence[Mapping[str, Any]], tables: TableNumbers) -> Iterator[ClaimPart]:
    """The parts of a claim that `claims.toml` gives as `numbers`."""
    for line in lines:
        for group in line["groups"]:
            for column in line["columns"]:
                own = number(tables, line["table"], line["row"], group, column)
                least = line.get("least")
                if least is None:
                    rivals = [number(tables, line["table"], rival, group, column) for rival in line["rivals"]]
                    yield above(own, rivals, line["by"])
                else:
                    words, subject = f"{own.attack} {own}, {least:g} wanted", f"{own.network}, {own.method}"
                    yield alone(own, own.value >= least - ROUNDING_POINTS, words, subject)


def leaking(tables: TableNumbers) -> Iterator[ClaimPart]:
    """FGSM adversarial training: accuracy under FGSM against that on clean images."""
    for table, network in (("table-1", "cnn"), ("table-2", "wide-resnet28")):
        attacked, clean = (number(tables, table, "fgsm-at", network, attack) for attack in ("fgsm", "none"))
        if missing := missing_of(attacked, clean):
            yield ClaimPart(held=None, missing=missing)
        else:
            words = f"{attacked} under FGSM against {clean} without an attack"
            held = attacked.value > clean.value
            yield ClaimPart(held=held, short=attacked.short, subject=attacked.network, words=words)


def before_purification(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Mean accuracy over the attacks: SOAP's bare classifier against a network without a defence."""
    for table, network, tasks in SOAP_TASKS:
        for task in tasks:
            own, others = (
                [number(tables, table, row, network, attack) for attack in ATTACKS] for row in (f"{task}-0", "no-def")
            )
            ours, theirs = (sum(each.value for each in numbers) / len(ATTACKS) for numbers in (own, others))
            if missing := missing_of(*own, *others):
                yield ClaimPart(held=None, missing=missing)
            else:
                words = f"{own[0].method} {ours:.2f} against {others[0].method} {theirs:.2f}"
                yield ClaimPart(held=ours >= theirs, short=own[0].short, subject=own[0].network, words=words)


def under_l2(tables: TableNumbers) -> Iterator[ClaimPart]:
    """SOAP keeps half of its clean accuracy on every network; PGD adversarial training only on the MNIST CNN."""
    for table, network, tasks in SOAP_TASKS:
        for row, wanted in (*((f"{task}-min-aux", True) for task in tasks), ("pgd-at", network == "cnn")):
            clean, *attacked = (number(tables, table, row, network, attack) for attack in ("none", *L2))
            missing, known = missing_of(clean, *attacked), [each for each in attacked if each.known]
            if not clean.known or not known:
                yield ClaimPart(held=None, missing=missing)
                continue
            kept = decided(min(each.value for each in known) >= KEPT_SHARE * clean.value, missing)
            numbers = " and ".join(f"{each} under {each.attack}" for each in known)
            yield ClaimPart(
                held=None if kept is None else kept is wanted,
                short=clean.short,
                subject=clean.network,
                words=f"{clean.method} {numbers}, of {clean}",
                missing=missing if kept is None else (),
            )


def _success_rates(tables: TableNumbers) -> Iterator[dict[str, TableNumber]]:
    """Success rates by method, for every attack and network."""
    for name in ("table-8", "table-9"):
        for row in NUMBER_TABLES[name].rows:
            methods = [column.name for column in NUMBER_TABLES[name].columns]
            yield {method: number(tables, name, row.name, "success", method) for method in methods}


def lowest_for_pgd_training(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Success rate on PGD adversarial training against all other methods."""
    parts = []
    for case in _success_rates(tables):
        own, others = case["pgd-at"], [rate for method, rate in case.items() if method != "pgd-at"]
        missing, known = missing_of(own, *others), [rate for rate in others if rate.known]
        if not own.known or not known:
            parts.append(ClaimPart(held=None, missing=missing))
            continue
        least = min(known, key=lambda rate: rate.value)
        words = f"{own.attack} on {own.network} ({own.method} {own}, {least.method} {least})"
        parts.append(ClaimPart(held=decided(own.value <= least.value, missing), words=words, missing=missing))
    yield mostly(parts, TYPICAL_SHARE)


def easy(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Success rates on SOAP's networks before purification."""
    rates = [case[task] for case in _success_rates(tables) for task in ("dr", "rp", "lc") if task in case]
    parts = [
        alone(rate, rate.value >= EASY_PERCENT, f"{rate.attack} on {rate.network} ({rate.method} {rate})")
        for rate in rates
    ]
    yield mostly(parts, NEARLY_ALL_SHARE)


def wide_lc(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Success rate of DeepFool on the Wide-ResNet-28 of label consistency."""
    rate = number(tables, "table-9", "df-wide-resnet28", "success", "lc")
    yield alone(rate, rate.value < SELDOM_PERCENT, f"DeepFool succeeds on {rate} %")


TABLE_CHECKS: dict[str, TableCheck] = {
    **{name: partial(compared, claim.numbers) for name, claim in CLAIMS.items() if claim.numbers},
    "labels-leak": leaking,
    "joint-training-helps-alone": before_purification,
    "l2-by-purification-alone": under_l2,
    "pgd-training-resists-l2": lowest_for_pgd_training,
    "easy-before-purification": easy,
    "wide-lc-resists-deepfool": wide_lc,
}
"""By claim."""
