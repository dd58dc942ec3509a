"""Check 11: accuracy does not increase with the radius."""

from dataclasses import dataclass

from soap.evaluation.checks.check import PASS, WARN, Check, Evidence, Judgement, Measurement, NotMeasuredError, percent
from soap.evaluation.checks.context import MeasurementContext, attempt_text, varied
from soap.evaluation.checks.unbounded import largest_radius

RADII = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii, in units of the threat's."""

MIN_RADII = 6
RISE_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class AccuracyByRadius:
    """Accuracy of the strongest attack at each radius, on the same images."""

    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    images: int
    attack: str


def measure(context: MeasurementContext) -> AccuracyByRadius:
    """Attack the same images anew at each radius."""
    largest = largest_radius(context)
    radii = sorted({min(factor * context.threat.eps, largest) for factor in RADII} | {largest})
    shares = [1.0]
    for eps in radii:
        found = context.attacked(varied(context.strongest.attack, eps=eps), context.model, context.x, context.y)
        shares.append(float(context.correct(found, context.y).double().mean()))
    attack = attempt_text(context.strongest)
    return AccuracyByRadius(eps=(0.0, *radii), accuracy=tuple(shares), images=len(context.x), attack=attack)


MEASUREMENT = Measurement("radii", AccuracyByRadius, measure, quick=False)


def judge(evidence: Evidence) -> Judgement:
    """WARN where accuracy rises from a radius to the next, over at least six radii."""
    found = evidence.record(MEASUREMENT)
    eps, shares = found.eps, found.accuracy
    tried = sum(radius > 0 for radius in eps)
    if tried < MIN_RADII:
        raise NotMeasuredError(f"Only {tried} radii were tried, expected {MIN_RADII}.")
    rises = [(after - before, radius) for before, after, radius in zip(shares, shares[1:], eps[1:], strict=False)]
    worst, where = max(rises)
    if worst > RISE_TOLERANCE:
        meaning = "A larger ball contains the smaller one: the attack is weak."
        return WARN, f"rises by {percent(worst)} at eps = {where:.4g}", meaning
    measured = f"{' '.join(percent(share) for share in shares)} at {len(eps) - 1} radii"
    return PASS, measured, "Accuracy falls with eps."


CHECKS = (Check(11, "accuracy falls with eps", judge, (MEASUREMENT,)),)
