"""Check 10: an attack without a bound breaks every image."""

import math
from dataclasses import dataclass

from soap.evaluation.checks.check import Check, Evidence, Judgement, Measurement, failed, passed, percent
from soap.evaluation.checks.context import (
    ImpossibleError,
    MeasurementContext,
    seen_by_attempt,
    varied,
    with_margin_loss,
)
from soap.specs import call_text, spec_of


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
    for attempt in context.ranked:
        for attack in (attempt.attack, with_margin_loss(attempt.attack)):
            if len(x):
                wide = varied(attack, eps=eps)
                made.append(f"{call_text(spec_of(wide))} on {attempt.rule}")
                found = context.attacked(wide, seen_by_attempt(context.defence, attempt), x, y, salt=len(made))
                survived = context.correct(found, y)
                x, y = x[survived], y[survived]
    if not made:
        raise ImpossibleError("no attempt of this suite uses gradient steps")
    return UnboundedAttack(eps=eps, images=len(context.x), standing=len(x), attacks=tuple(made))


def largest_radius(context: MeasurementContext) -> float:
    """The radius that reaches every image of [0, 1] from every other: 1, or the diagonal of the cube in L2."""
    return 1.0 if context.threat.norm == "linf" else math.sqrt(context.x[0].numel())


MEASUREMENT: Measurement[UnboundedAttack] = Measurement(
    fact="unbounded", record=UnboundedAttack, measure=measure, check=10, quick=False
)


def judge(evidence: Evidence) -> Judgement:
    """FAIL where any image survives."""
    found = evidence.record(MEASUREMENT)
    measured = f"{percent(found.standing / found.images)} at eps = {found.eps:g}, {found.images} images"
    if found.standing:
        return failed(measured, "An attack without a bound breaks every classifier, unless its gradients mislead it.")
    return passed(measured, "Without a bound the attack breaks every image.")


CHECK: Check = Check(number=10, name="unbounded attack reaches 0 %", judge=judge)
