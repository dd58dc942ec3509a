"""Checks 10 and 11: accuracy does not increase with the radius, and an attack without a bound breaks every image."""

import math
from dataclasses import dataclass

from soap.evaluation.checks.check import (
    FAIL,
    PASS,
    WARN,
    Check,
    Evidence,
    Judgement,
    Measurement,
    NotMeasuredError,
    percent,
)
from soap.evaluation.checks.context import MeasurementContext, attack_text, attempt_text, varied, varied_if_possible

RADII = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii, in units of the threat's."""

MIN_RADII = 6
RISE_TOLERANCE, RANDOM_RISE_TOLERANCE = 1e-9, 0.02
"""By how much (a share) accuracy may rise by rounding, and by the draws of a random defence."""


@dataclass(frozen=True, kw_only=True)
class UnboundedAttack:
    """Images that survive all attacks at a radius that reaches every image (standing)."""

    eps: float
    images: int
    standing: int
    attacks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AccuracyByRadius:
    """Accuracy of the strongest attack at each radius, on the same images."""

    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    images: int
    attack: str

    def at(self, eps: float) -> float:
        """The accuracy at the largest radius up to `eps`."""
        return [share for radius, share in zip(self.eps, self.accuracy, strict=True) if radius <= eps][-1]


def measure_unbounded(context: MeasurementContext) -> UnboundedAttack:
    """The ranked attacks at that radius, each on the images that survived the earlier ones."""
    x, y, eps = context.x, context.y, largest_radius(context)
    made: list[str] = []
    for attempt in (context.strongest, *context.ranked[1:]):
        wide = varied(attempt.attack, eps=eps)
        for attack in (wide, varied_if_possible(wide, loss="margin")):
            if len(x):
                made.append(attack_text(attack, attempt))
                found = context.attacked(attack, context.run.seen(attempt), x, y, salt=len(made))
                survived = context.correct(found, y)
                x, y = x[survived], y[survived]
    return UnboundedAttack(eps=eps, images=len(context.x), standing=len(x), attacks=tuple(made))


def measure(context: MeasurementContext) -> AccuracyByRadius:
    """Attack the same images anew at each radius."""
    largest = largest_radius(context)
    radii = sorted({min(factor * context.run.threat.eps, largest) for factor in RADII} | {largest})
    shares = [1.0]
    for eps in radii:
        once = varied_if_possible(varied(context.strongest.attack, eps=eps), restarts=1)
        found = context.attacked(once, context.model, context.x, context.y)
        shares.append(float(context.correct(found, context.y).double().mean()))
    attack = attempt_text(context.strongest)
    return AccuracyByRadius(eps=(0.0, *radii), accuracy=tuple(shares), images=len(context.x), attack=attack)


def largest_radius(context: MeasurementContext) -> float:
    """The radius that reaches every image of [0, 1] from every other: 1, the diagonal of the cube in L2, d in L1."""
    size = context.x[0].numel()
    return {"linf": 1.0, "l2": math.sqrt(size), "l1": float(size)}[context.run.threat.norm]


UNBOUNDED = Measurement("unbounded", UnboundedAttack, measure_unbounded, quick=False)
MEASUREMENT = Measurement("radii", AccuracyByRadius, measure, quick=False)


def judge_unbounded(evidence: Evidence) -> Judgement:
    """FAIL where any image survives."""
    found = evidence.record(UNBOUNDED)
    measured = f"{percent(found.standing / found.images)} at eps = {found.eps:g}, {found.images} images"
    if found.standing:
        return FAIL, measured, "An attack without a bound breaks every classifier, unless its gradients mislead it."
    return PASS, measured, "Without a bound the attack breaks every image."


def judge(evidence: Evidence) -> Judgement:
    """WARN where accuracy rises from a radius to the next, over at least six radii."""
    found = evidence.record(MEASUREMENT)
    eps, shares = found.eps, found.accuracy
    tried = sum(radius > 0 for radius in eps)
    if tried < MIN_RADII:
        raise NotMeasuredError(f"Only {tried} radii were tried, expected {MIN_RADII}.")
    rises = [(after - before, radius) for before, after, radius in zip(shares, shares[1:], eps[1:], strict=False)]
    worst, where = max(rises)
    if worst > (RANDOM_RISE_TOLERANCE if evidence.plan["random"] else RISE_TOLERANCE):
        meaning = "A larger ball contains the smaller one: the attack is weak."
        return WARN, f"rises by {percent(worst)} at eps = {where:.4g}", meaning
    measured = f"{' '.join(percent(share) for share in shares)} at {len(eps) - 1} radii"
    return PASS, measured, "Accuracy falls with eps."


CHECKS = (
    Check(10, "unbounded attack reaches 0 %", judge_unbounded, (UNBOUNDED,)),
    Check(11, "accuracy falls with eps", judge, (MEASUREMENT,)),
)
