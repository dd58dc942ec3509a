"""Checks 8 and 9: twice the iterations and twice the restarts change accuracy by less than half a point."""

from dataclasses import dataclass

from soap.attacks import Attack
from soap.evaluation.checks.check import HALF_A_POINT, Check, Evidence, Judgement, Measurement, passed, warned
from soap.evaluation.checks.context import MeasurementContext, varied
from soap.specs import call_text, spec_of


@dataclass(frozen=True, kw_only=True)
class MoreEffort:
    """A stronger attack on images that survived every attempt: how many it broke, and the change of accuracy."""

    attack: str
    images: int
    broken: int
    moved: float


def measure_steps(context: MeasurementContext) -> MoreEffort:
    """The strongest attack with twice the iterations."""
    attack = context.strongest.attack
    return _on_survivors(context, varied(attack, steps=2 * attack.steps), salt=8)  # type: ignore[attr-defined]


def measure_restarts(context: MeasurementContext) -> MoreEffort:
    """The strongest attack with twice the restarts and other seeds."""
    attack = context.strongest.attack
    return _on_survivors(context, varied(attack, restarts=2 * getattr(attack, "restarts", 1)), salt=9)


def _on_survivors(context: MeasurementContext, attack: Attack, *, salt: int) -> MoreEffort:
    x, y = context.surviving
    broken = int((~context.correct(context.attacked(attack, context.model, x, y, salt=salt), y)).sum()) if len(x) else 0
    return MoreEffort(attack=call_text(spec_of(attack)), images=len(x), broken=broken, moved=broken * context.share)


STEPS: Measurement[MoreEffort] = Measurement(
    fact="doubled-steps", record=MoreEffort, measure=measure_steps, check=8, quick=False
)
RESTARTS: Measurement[MoreEffort] = Measurement(
    fact="doubled-restarts", record=MoreEffort, measure=measure_restarts, check=9, quick=False
)


def judge_steps(evidence: Evidence) -> Judgement:
    """WARN where twice the iterations break more."""
    return _judge(evidence.record(STEPS), "iterations")


def judge_restarts(evidence: Evidence) -> Judgement:
    """WARN where twice the restarts break more."""
    return _judge(evidence.record(RESTARTS), "restarts")


def _judge(found: MoreEffort, what: str) -> Judgement:
    measured = f"accuracy moves by {100 * found.moved:.2f} points ({found.broken} of {found.images} survivors broken)"
    if found.moved >= HALF_A_POINT:
        return warned(measured, f"Twice the {what} break more images: the attack has not converged. Use more.")
    return passed(measured, f"Twice the {what} change little.")


CHECKS: tuple[Check, ...] = (
    Check(number=8, name="converged", judge=judge_steps),
    Check(number=9, name="restarts", judge=judge_restarts),
)
