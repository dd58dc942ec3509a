"""Claims about how long training takes: Figure 7."""

from collections.abc import Iterator

from soap.paper.verdicts.findings import Findings
from soap.paper.verdicts.parts import Check, Part

LITTLE, CLOSE, MUCH_LESS, LESS = 1.5, 1.5, 1 / 2, 2 / 3
"""Shares of the other method's time."""

SMALL = {"mnist-fcn": ("dr",), "cifar10-resnet18": ("rp", "lc")}
LARGE = {"mnist-cnn": ("dr",), "cifar10-wide-resnet28": ("rp", "lc")}
METHODS = {"no-def": "No Def", "fgsm-at": "FGSM AT", "pgd-at": "PGD AT"}


def overhead(findings: Findings) -> Iterator[Part]:
    """SOAP against no defence."""
    for network, tasks in (SMALL | LARGE).items():
        for task in tasks:
            yield _share(findings, network, task, "no-def", most=LITTLE)


def small(findings: Findings) -> Iterator[Part]:
    """SOAP against both kinds of adversarial training."""
    for network, tasks in SMALL.items():
        for task in tasks:
            yield _share(findings, network, task, "fgsm-at", most=CLOSE)
            yield _share(findings, network, task, "pgd-at", most=MUCH_LESS)


def large(findings: Findings) -> Iterator[Part]:
    """The same on large networks, where it takes longer than FGSM adversarial training."""
    for network, tasks in LARGE.items():
        for task in tasks:
            yield _share(findings, network, task, "fgsm-at", least=1.0)
            yield _share(findings, network, task, "pgd-at", most=LESS)


def _share(findings: Findings, network: str, task: str, other: str, *, least: float = 0.0, most: float = 1e9) -> Part:
    """Whether SOAP's time is within these shares of the other method's."""
    ours, theirs = (findings.seconds.get(f"{network}-{method}") for method in (task, other))
    if ours is None or theirs is None:
        missing = [method for method, found in ((task, ours), (other, theirs)) if found is None]
        return Part(held=None, lacks=tuple(("epochs timed", f"{network}-{method}") for method in missing))
    words = f"SOAP-{task.upper()} {ours:.2f} s against {METHODS[other]} {theirs:.2f} s"
    return Part(held=least <= ours / theirs <= most, subject=network, words=words)


COST: dict[str, Check[Findings]] = {
    "small-overhead": Check(rule=f"an epoch takes at most {LITTLE:g} times as long as with No Def", parts=overhead),
    "small-networks-train-fast": Check(
        rule=f"an epoch takes at most {CLOSE:g} times as long as with FGSM AT, and at most half as long as with PGD "
        "AT; FCN and ResNet-18",
        parts=small,
    ),
    "large-networks-train-faster": Check(
        rule="an epoch takes at least as long as with FGSM AT, and at most two thirds as long as with PGD AT; CNN and "
        "Wide-ResNet-28",
        parts=large,
    ),
}
