"""Check 10: an attack without a bound breaks every image."""

import math
from dataclasses import dataclass

from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement, percent
from soap.evaluation.checks.context import MeasurementContext, attack_text, varied, varied_if_possible


@dataclass(frozen=True, kw_only=True)
class UnboundedAttack:
    """Images that survive all attacks at a radius that reaches every image (standing)."""

    eps: float
    images: int
    standing: int
    attacks: tuple[str, ...]


def measure(context: MeasurementContext) -> UnboundedAttack:
    """The ranked attacks at that radius, each on the images that survived the earlier ones."""
    x, y, eps = context.x, context.y, largest_radius(context)
    made: list[str] = []
    for attempt in (context.strongest, *context.ranked[1:]):
        wide = varied(attempt.attack, eps=eps)
        for attack in (wide, varied_if_possible(wide, loss="margin")):
            if len(x):
                made.append(attack_text(attack, attempt))
                found = context.attacked(attack, attempt.seen(context.defence), x, y, salt=len(made))
                survived = context.correct(found, y)
                x, y = x[survived], y[survived]
    return UnboundedAttack(eps=eps, images=len(context.x), standing=len(x), attacks=tuple(made))


def largest_radius(context: MeasurementContext) -> float:
    """The radius that reaches every image of [0, 1] from every other: 1, or the diagonal of the cube in L2."""
    return 1.0 if context.threat.norm == "linf" else math.sqrt(context.x[0].numel())


MEASUREMENT = Measurement("unbounded", UnboundedAttack, measure, quick=False)


def judge(evidence: Evidence) -> Judgement:
    """FAIL where any image survives."""
    found = evidence.record(MEASUREMENT)
    measured = f"{percent(found.standing / found.images)} at eps = {found.eps:g}, {found.images} images"
    if found.standing:
        return FAIL, measured, "An attack without a bound breaks every classifier, unless its gradients mislead it."
    return PASS, measured, "Without a bound the attack breaks every image."


CHECKS = (Check(10, "unbounded attack reaches 0 %", judge, (MEASUREMENT,)),)
