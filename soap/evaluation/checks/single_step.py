"""Check 12: the iterative attack is at least as strong as one step."""

from dataclasses import dataclass
from functools import partial

from soap._runtime.isolation import isolated
from soap.attacks.losses import cross_entropy
from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement, percent
from soap.evaluation.checks.context import MeasurementContext
from soap.gradient_rules import logits_and_gradient, with_finite_logits


@dataclass(frozen=True, kw_only=True)
class SingleStep:
    """Accuracy after one step of the length of the radius, and after the strongest protocol, on the same images."""

    images: int
    single: float
    iterative: float
    protocol: str


def measure(context: MeasurementContext) -> SingleStep:
    """One gradient step on every image."""
    x, y = context.x, context.y
    survived = 0
    for start in range(0, len(x), context.batch):
        part, labels = x[start : start + context.batch], y[start : start + context.batch]
        model = with_finite_logits(context.model, part)
        with isolated(model):
            _, direction = logits_and_gradient(model, part, partial(cross_entropy, y=labels))
        step = context.ball.project(context.threat.eps * context.ball.steepest(direction.nan_to_num()))
        survived += int(context.correct((part + step).clamp(0, 1), labels).sum())
    return SingleStep(
        images=len(x), single=survived / len(x), iterative=context.left, protocol=context.strongest.protocol
    )


MEASUREMENT = Measurement("single-step", SingleStep, measure)


def judge(evidence: Evidence) -> Judgement:
    """FAIL where one step breaks more than many."""
    found = evidence.record(MEASUREMENT)
    measured = f"{percent(found.iterative)} after {found.protocol}, {percent(found.single)} after one step"
    measured += f", {found.images} images"
    if found.iterative > found.single:
        return FAIL, measured, "One step breaks more than many: the gradient is wrong away from the image."
    return PASS, measured, "Many steps break at least as much as one."


CHECKS = (Check(12, "iterative beats single-step", judge, (MEASUREMENT,)),)
