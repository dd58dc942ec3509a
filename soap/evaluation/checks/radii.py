"""The strongest attack at other radii: without bound (check 10), and along a ladder (check 11, and the report)."""

import math
from typing import Any

from soap.attacks import Attack
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject, by_margin, seen, varied
from soap.shapes import Tensor

LADDER = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii, in units of the threat's."""


def unbounded(subject: Subject) -> dict[str, Any]:
    """Accuracy where attacks may go to any image at all, each on what the ones before left."""
    x, y, eps = subject.x, subject.y, whole_cube(subject)
    made = []
    for attempt in subject.ranked:
        for attack in (attempt.attack, by_margin(attempt.attack)):
            if len(x):
                made.append(f"{varied(attack, eps=eps)!r} on {attempt.sight}")
                found = subject.strike(varied(attack, eps=eps), seen(subject.target, attempt), x, y, salt=len(made))
                standing = subject.right(found, y)
                x, y = x[standing], y[standing]
    if not made:
        raise ImpossibleError("no attempt of this suite goes by gradient steps")
    return {"eps": eps, "images": len(subject.x), "standing": len(x), "attacks": made}


def ladder(subject: Subject) -> dict[str, Any]:
    """Accuracy on the same images at every radius, each attacked afresh."""
    if len(subject.x) == 0:
        raise ImpossibleError("the defence classifies no clean image rightly")
    radii = sorted({min(rung * subject.threat.eps, whole_cube(subject)) for rung in LADDER} | {whole_cube(subject)})
    shares = [1.0, *(_accuracy(subject, varied(subject.strongest.attack, eps=eps)) for eps in radii)]
    return {"eps": [0.0, *radii], "accuracy": shares, "images": len(subject.x), "attack": subject.strongest.settings}


def whole_cube(subject: Subject) -> float:
    """A radius that reaches every image from every other: 1, and in L2 the cube's diagonal."""
    return 1.0 if subject.threat.norm == "linf" else math.sqrt(subject.x[0].numel())


def _accuracy(subject: Subject, attack: Attack) -> float:
    found: Tensor = subject.strike(attack, subject.model, subject.x, subject.y)
    return float(subject.right(found, subject.y).double().mean())
