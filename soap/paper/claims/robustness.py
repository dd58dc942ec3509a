"""Claims about what a way of training leaves of a network's accuracy under attack: Tables 1 and 2."""

from collections.abc import Iterator, Sequence

from soap.paper.verdicts.numbers import Number, Tables, decided, lacking, number
from soap.paper.verdicts.parts import Check, Part

KEPT = 0.5
"""The share of its clean accuracy that a defence keeps where it is effective."""

ATTACKS, L2 = ("fgsm", "pgd", "cw", "df"), ("cw", "df")

NETWORKS = (
    ("table-1", "fcn", ("dr",)),
    ("table-1", "cnn", ("dr",)),
    ("table-2", "resnet18", ("rp", "lc")),
    ("table-2", "wide-resnet28", ("rp", "lc")),
)
"""Table, group of columns, and the tasks that SOAP was trained on."""


def leaking(tables: Tables) -> Iterator[Part]:
    """FGSM adversarial training: under FGSM against clean images."""
    for table, network in (("table-1", "cnn"), ("table-2", "wide-resnet28")):
        attacked, clean = (number(tables, table, "fgsm-at", network, attack) for attack in ("fgsm", "none"))
        if attacked.value is None or clean.value is None:
            yield Part(held=None, lacks=lacking(attacked, clean))
        else:
            words = f"{attacked} under FGSM against {clean} without an attack"
            held = attacked.value > clean.value
            yield Part(held=held, short=attacked.short, subject=attacked.network, words=words)


def before_purification(tables: Tables) -> Iterator[Part]:
    """The bare network of SOAP against one without a defence, on average over the attacks."""
    for table, network, tasks in NETWORKS:
        bare = [number(tables, table, "no-def", network, attack) for attack in ATTACKS]
        for task in tasks:
            own = [number(tables, table, f"{task}-0", network, attack) for attack in ATTACKS]
            yield _on_average(own, bare)


def _on_average(own: Sequence[Number], others: Sequence[Number]) -> Part:
    ours, theirs = _mean(own), _mean(others)
    if ours is None or theirs is None:
        return Part(held=None, lacks=lacking(*own, *others))
    words = f"{own[0].method} {ours:.2f} against {others[0].method} {theirs:.2f}"
    return Part(held=ours >= theirs, short=own[0].short, subject=own[0].network, words=words)


def _mean(numbers: Sequence[Number]) -> float | None:
    values = [each.value for each in numbers if each.value is not None]
    return sum(values) / len(values) if len(values) == len(numbers) else None


def under_l2(tables: Tables) -> Iterator[Part]:
    """SOAP keeps half of its clean accuracy on every network, PGD adversarial training on the MNIST CNN alone."""
    for table, network, tasks in NETWORKS:
        for row, wanted in (*((f"{task}-min-aux", True) for task in tasks), ("pgd-at", network == "cnn")):
            clean = number(tables, table, row, network, "none")
            yield _keeps(clean, [number(tables, table, row, network, attack) for attack in L2], wanted)


def _keeps(clean: Number, attacked: Sequence[Number], wanted: bool) -> Part:
    """Whether the share is kept under all attacks; `wanted` tells whether the claim wants so."""
    lacks, known = lacking(clean, *attacked), [each.value for each in attacked if each.value is not None]
    if clean.value is None or not known:
        return Part(held=None, lacks=lacks)
    kept = decided(min(known) >= KEPT * clean.value, lacks)
    numbers = " and ".join(f"{each} under {each.attack}" for each in attacked if each.value is not None)
    words = f"{clean.method} {numbers}, of {clean}"
    if kept is None:
        return Part(held=None, subject=clean.network, words=words, lacks=lacks)
    return Part(held=kept is wanted, short=clean.short, subject=clean.network, words=words)


ROBUSTNESS: dict[str, Check[Tables]] = {
    "labels-leak": Check(rule="accuracy under FGSM above that on clean images, CNN and Wide-ResNet-28", parts=leaking),
    "joint-training-helps-alone": Check(
        rule="SOAP with ε = 0 not below No Def in the mean of FGSM, PGD, CW and DF, for each network and task",
        parts=before_purification,
    ),
    "l2-by-purification-alone": Check(
        rule="SOAP keeps half of its clean accuracy under CW and under DF on each network, PGD AT on the CNN alone",
        parts=under_l2,
    ),
}
