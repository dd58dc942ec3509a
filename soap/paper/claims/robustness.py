"""Claims about accuracy under attack by kind of training: Tables 1 and 2."""

from collections.abc import Iterator, Sequence

from soap.paper.claims.checks import ClaimCheck, ClaimPart, TableNumbers
from soap.paper.claims.table_numbers import TableNumber, decided, missing_of, number

KEPT_SHARE = 0.5
"""An effective defence keeps at least this share of its clean accuracy."""

ATTACKS, L2 = ("fgsm", "pgd", "cw", "df"), ("cw", "df")

NETWORKS = (
    ("table-1", "fcn", ("dr",)),
    ("table-1", "cnn", ("dr",)),
    ("table-2", "resnet18", ("rp", "lc")),
    ("table-2", "wide-resnet28", ("rp", "lc")),
)
"""Table, group of columns, and SOAP's tasks on that network."""


def leaking(tables: TableNumbers) -> Iterator[ClaimPart]:
    """FGSM adversarial training: accuracy under FGSM against that on clean images."""
    for table, network in (("table-1", "cnn"), ("table-2", "wide-resnet28")):
        attacked, clean = (number(tables, table, "fgsm-at", network, attack) for attack in ("fgsm", "none"))
        if attacked.value is None or clean.value is None:
            yield ClaimPart(held=None, missing=missing_of(attacked, clean))
        else:
            words = f"{attacked} under FGSM against {clean} without an attack"
            held = attacked.value > clean.value
            yield ClaimPart(held=held, short=attacked.short, subject=attacked.network, words=words)


def before_purification(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Mean accuracy over the attacks: SOAP's bare classifier against a network without a defence."""
    for table, network, tasks in NETWORKS:
        bare = [number(tables, table, "no-def", network, attack) for attack in ATTACKS]
        for task in tasks:
            own = [number(tables, table, f"{task}-0", network, attack) for attack in ATTACKS]
            yield _on_average(own, bare)


def _on_average(own: Sequence[TableNumber], others: Sequence[TableNumber]) -> ClaimPart:
    ours, theirs = _mean(own), _mean(others)
    if ours is None or theirs is None:
        return ClaimPart(held=None, missing=missing_of(*own, *others))
    words = f"{own[0].method} {ours:.2f} against {others[0].method} {theirs:.2f}"
    return ClaimPart(held=ours >= theirs, short=own[0].short, subject=own[0].network, words=words)


def _mean(numbers: Sequence[TableNumber]) -> float | None:
    values = [each.value for each in numbers if each.value is not None]
    return sum(values) / len(values) if len(values) == len(numbers) else None


def under_l2(tables: TableNumbers) -> Iterator[ClaimPart]:
    """SOAP keeps half of its clean accuracy on every network; PGD adversarial training only on the MNIST CNN."""
    for table, network, tasks in NETWORKS:
        for row, wanted in (*((f"{task}-min-aux", True) for task in tasks), ("pgd-at", network == "cnn")):
            clean = number(tables, table, row, network, "none")
            yield _keeps(clean, [number(tables, table, row, network, attack) for attack in L2], wanted)


def _keeps(clean: TableNumber, attacked: Sequence[TableNumber], wanted: bool) -> ClaimPart:
    """Whether the share is kept under all attacks, compared with what the claim says (`wanted`)."""
    missing, known = missing_of(clean, *attacked), [each.value for each in attacked if each.value is not None]
    if clean.value is None or not known:
        return ClaimPart(held=None, missing=missing)
    kept = decided(min(known) >= KEPT_SHARE * clean.value, missing)
    numbers = " and ".join(f"{each} under {each.attack}" for each in attacked if each.value is not None)
    words = f"{clean.method} {numbers}, of {clean}"
    if kept is None:
        return ClaimPart(held=None, subject=clean.network, words=words, missing=missing)
    return ClaimPart(held=kept is wanted, short=clean.short, subject=clean.network, words=words)


ROBUSTNESS: dict[str, ClaimCheck[TableNumbers]] = {
    "labels-leak": ClaimCheck(
        rule="accuracy under FGSM above that on clean images, CNN and Wide-ResNet-28", parts=leaking
    ),
    "joint-training-helps-alone": ClaimCheck(
        rule="SOAP with ε = 0 not below No Def in the mean of FGSM, PGD, CW and DF, for each network and task",
        parts=before_purification,
    ),
    "l2-by-purification-alone": ClaimCheck(
        rule="SOAP keeps half of its clean accuracy under CW and under DF on each network, PGD AT on the CNN alone",
        parts=under_l2,
    ),
}
