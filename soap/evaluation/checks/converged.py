"""Whether more work breaks more: twice the iterations (check 8), twice the restarts (check 9), one step (check 12)."""

from functools import partial
from typing import Any

from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.attacks.losses import cross_entropy
from soap.evaluation.adaptive.attackable import attackable
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject, varied
from soap.gradient_rules import logits_and_gradient


def doubled_steps(subject: Subject) -> dict[str, Any]:
    """How far twice the iterations of the strongest attack lower the worst case."""
    attack = subject.strongest.attack
    return _further(subject, varied(attack, steps=2 * attack.steps), salt=8)  # type: ignore[attr-defined]


def doubled_restarts(subject: Subject) -> dict[str, Any]:
    """How far twice the restarts lower it, from other draws."""
    attack = subject.strongest.attack
    return _further(subject, varied(attack, restarts=2 * getattr(attack, "restarts", 1)), salt=9)


def _further(subject: Subject, attack: Attack, *, salt: int) -> dict[str, Any]:
    """The attack on images that every attempt left standing; what it breaks, the suite had not found."""
    x, y = subject.standing
    broken = int((~subject.right(subject.strike(attack, subject.model, x, y, salt=salt), y)).sum()) if len(x) else 0
    return {
        "attack": repr(attack),
        "images": len(x),
        "broken": broken,
        "moved": broken * subject.share,
    }


def single_step(subject: Subject) -> dict[str, Any]:
    """Accuracy after one step as long as the radius, beside that after the strongest protocol, on the same images."""
    x, y = subject.x, subject.y
    if len(x) == 0:
        raise ImpossibleError("the defence classifies no clean image rightly")
    kept = 0
    for start in range(0, len(x), subject.batch):
        part, labels = x[start : start + subject.batch], y[start : start + subject.batch]
        model = attackable(subject.model, part)
        with isolated(model):
            _, direction = logits_and_gradient(model, part, partial(cross_entropy, y=labels))
        step = subject.ball.project(subject.threat.eps * subject.ball.steepest(direction.nan_to_num()))
        kept += int(subject.right((part + step).clamp(0, 1), labels).sum())
    return {
        "images": len(x),
        "single": kept / len(x),
        "iterative": subject.left,
        "protocol": subject.strongest.protocol,
    }
