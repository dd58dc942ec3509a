"""Check 2: the defence returns finite logits, not probabilities."""

from dataclasses import dataclass

import torch

from soap._runtime.isolation import isolated
from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import MeasurementContext

IMAGES = 64


@dataclass(frozen=True, kw_only=True)
class OutputRange:
    """Outputs on a few clean images; probabilities: whether they are non-negative and sum to one."""

    images: int
    finite: bool
    probabilities: bool
    low: float | None
    high: float | None


def measure(context: MeasurementContext) -> OutputRange:
    """Range and sums of the outputs."""
    x, _ = context.few(IMAGES)
    with isolated(context.defence), torch.no_grad():
        logits = context.defence(x)
    finite = bool(torch.isfinite(logits).all())
    sums = bool(((logits.sum(1) - 1).abs() < 1e-3).all()) if finite else False
    return OutputRange(
        images=len(x),
        finite=finite,
        probabilities=finite and sums and bool(logits.min() >= 0),
        low=float(logits.min()) if finite else None,
        high=float(logits.max()) if finite else None,
    )


MEASUREMENT = Measurement("outputs", OutputRange, measure)


def judge(evidence: Evidence) -> Judgement:
    """FAIL for probabilities or non-finite outputs."""
    found = evidence.record(MEASUREMENT)
    if not found.finite:
        return FAIL, "NaN or infinite", "The defence returns NaN or infinite outputs on clean images."
    measured = f"{found.low:.3g} to {found.high:.3g} on {found.images} images"
    if found.probabilities:
        meaning = "These are probabilities: a softmax flattens the loss that attacks increase. Remove it."
        return FAIL, f"outputs sum to 1, {measured}", meaning
    return PASS, measured, "The defence returns logits."


CHECKS = (Check(2, "logits, not probabilities", judge, (MEASUREMENT,)),)
