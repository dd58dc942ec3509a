"""Checks 8 and 9: twice the iterations and twice the restarts change accuracy by less than half a point."""

from dataclasses import dataclass
from functools import partial

from soap.evaluation.checks.check import HALF_A_POINT, PASS, WARN, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import MeasurementContext, varied
from soap.specs import call_text, spec_of


@dataclass(frozen=True, kw_only=True)
class MoreEffort:
    """A stronger attack on images that survived every attempt: how many it broke, and the change of accuracy."""

    attack: str
    images: int
    broken: int
    moved: float


def measure(context: MeasurementContext, setting: str, salt: int) -> MoreEffort:
    """The strongest attack with twice the `setting`, on surviving images."""
    attack = context.strongest.attack
    attack = varied(attack, **{setting: 2 * getattr(attack, setting, 1)})
    x, y = context.surviving
    broken = int((~context.correct(context.attacked(attack, context.model, x, y, salt=salt), y)).sum()) if len(x) else 0
    return MoreEffort(attack=call_text(spec_of(attack)), images=len(x), broken=broken, moved=broken * context.share)


STEPS = Measurement("doubled-steps", MoreEffort, partial(measure, setting="steps", salt=8), quick=False)
RESTARTS = Measurement("doubled-restarts", MoreEffort, partial(measure, setting="restarts", salt=9), quick=False)


def judge(evidence: Evidence, measurement: Measurement[MoreEffort], what: str) -> Judgement:
    """WARN where twice the effort breaks more."""
    found = evidence.record(measurement)
    measured = f"accuracy moves by {100 * found.moved:.2f} points ({found.broken} of {found.images} survivors broken)"
    if found.moved >= HALF_A_POINT:
        return WARN, measured, f"Twice the {what} break more images: the attack has not converged. Use more."
    return PASS, measured, f"Twice the {what} change little."


CHECKS = (
    Check(8, "converged", partial(judge, measurement=STEPS, what="iterations"), (STEPS,)),
    Check(9, "restarts", partial(judge, measurement=RESTARTS, what="restarts"), (RESTARTS,)),
)
