"""Claims about the duration of training: Figure 7."""

from collections.abc import Iterator

from soap.paper.claims.checks import ClaimCheck, ClaimEvidence, ClaimPart
from soap.paper.model_names import METHOD_NAMES

SMALL_OVERHEAD, CLOSE_RATIO, MUCH_FASTER, FASTER = 1.5, 1.5, 1 / 2, 2 / 3
"""Largest ratios of SOAP's time to the other method's."""

SMALL = {"mnist-fcn": ("dr",), "cifar10-resnet18": ("rp", "lc")}
LARGE = {"mnist-cnn": ("dr",), "cifar10-wide-resnet28": ("rp", "lc")}


def overhead(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """SOAP's time against that without a defence."""
    for network, tasks in (SMALL | LARGE).items():
        for task in tasks:
            yield _share(evidence, network, task, "no-def", most=SMALL_OVERHEAD)


def small(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """SOAP's time against both kinds of adversarial training, on small networks."""
    for network, tasks in SMALL.items():
        for task in tasks:
            yield _share(evidence, network, task, "fgsm-at", most=CLOSE_RATIO)
            yield _share(evidence, network, task, "pgd-at", most=MUCH_FASTER)


def large(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """The same on large networks, where SOAP takes longer than FGSM adversarial training."""
    for network, tasks in LARGE.items():
        for task in tasks:
            yield _share(evidence, network, task, "fgsm-at", least=1.0)
            yield _share(evidence, network, task, "pgd-at", most=FASTER)


def _share(
    evidence: ClaimEvidence, network: str, task: str, other: str, *, least: float = 0.0, most: float = 1e9
) -> ClaimPart:
    """Whether the ratio of SOAP's time to the other method's is within these limits."""
    ours, theirs = (evidence.seconds.get(f"{network}-{method}") for method in (task, other))
    if ours is None or theirs is None:
        absent = [method for method, found in ((task, ours), (other, theirs)) if found is None]
        return ClaimPart(held=None, missing=tuple(("epochs timed", f"{network}-{method}") for method in absent))
    words = f"{METHOD_NAMES[task]} {ours:.2f} s against {METHOD_NAMES[other]} {theirs:.2f} s"
    return ClaimPart(held=least <= ours / theirs <= most, subject=network, words=words)


COST: dict[str, ClaimCheck[ClaimEvidence]] = {
    "small-overhead": ClaimCheck(
        rule=f"an epoch takes at most {SMALL_OVERHEAD:g} times as long as with No Def", parts=overhead
    ),
    "small-networks-train-fast": ClaimCheck(
        rule=f"an epoch takes at most {CLOSE_RATIO:g} times as long as with FGSM AT, and at most half as long as with "
        "PGD AT; FCN and ResNet-18",
        parts=small,
    ),
    "large-networks-train-faster": ClaimCheck(
        rule="an epoch takes at least as long as with FGSM AT, and at most two thirds as long as with PGD AT; CNN and "
        "Wide-ResNet-28",
        parts=large,
    ),
}
