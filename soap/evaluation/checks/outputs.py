"""Checks 2 and 3: the defence returns finite logits, the same on every call unless attacks average over its draws.

Three more ways in which attacks and evaluation may see different functions are measured: logits that differ while
gradients are recorded, and pseudo-random logits, which repeat for the same image but change altogether with an
invisible change of it.
"""

from dataclasses import dataclass

import torch

from soap._runtime.isolation import isolated
from soap._runtime.seeding import seed_for
from soap.evaluation.checks.check import FAIL, PASS, WARN, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import MeasurementContext
from soap.gradient_rules.random_draws import own_generators, seeded_draws
from soap.shapes import Tensor

IMAGES = 64


@dataclass(frozen=True, kw_only=True)
class OutputRange:
    """Outputs on a few clean images; probabilities: whether they are non-negative and sum to one."""

    images: int
    finite: bool
    probabilities: bool
    low: float | None
    high: float | None


def measure_range(context: MeasurementContext) -> OutputRange:
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


RANGE = Measurement("outputs", OutputRange, measure_range)


def judge_range(evidence: Evidence) -> Judgement:
    """FAIL for probabilities or non-finite outputs."""
    found = evidence.record(RANGE)
    if not found.finite:
        return FAIL, "NaN or infinite", "The defence returns NaN or infinite outputs on clean images."
    measured = f"{found.low:.3g} to {found.high:.3g} on {found.images} images"
    if found.probabilities:
        meaning = "These are probabilities: a softmax flattens the loss that attacks increase. Remove it."
        return FAIL, f"outputs sum to 1, {measured}", meaning
    return PASS, measured, "The defence returns logits."


CALLS = 5
RELATIVE_TOLERANCE = 1e-4
"""Difference of logits, relative to their size, that rounding may cause."""

TINY, SMALL = 1e-6, 1e-2
"""Changes of a pixel: one that no defence should notice, and one whose effect the other is compared with."""

MAX_TINY_EFFECT = 0.5
"""Median effect of a tiny change, relative to that of a small one. Continuous defences have about TINY / SMALL."""


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """Difference of the outputs over several calls, relative to their size.

    with_gradients: difference between outputs with and without recorded gradients. tiny_effect: median effect of a
    change of 1e-6, relative to that of a change of 1e-2; both with the same random state.
    """

    images: int
    calls: int
    difference: float
    changed_labels: int
    deterministic: bool
    with_gradients: float = 0.0
    tiny_effect: float = 0.0


def measure_determinism(context: MeasurementContext) -> Determinism:
    """Compare the logits of several calls, with and without gradients, and at neighbouring points."""
    x, _ = context.few(IMAGES)
    with isolated(context.defence), torch.no_grad():
        calls = torch.stack([context.defence(x) for _ in range(CALLS)]).double().nan_to_num()
    size = calls[0].abs().amax().clamp_min(1e-30)
    difference = float((calls - calls[0]).abs().amax() / size)
    changed = int((calls.argmax(2) != calls[0].argmax(1)).any(0).sum())
    with torch.enable_grad():
        recorded = _logits(context, x.clone().requires_grad_())
    plain = _logits(context, x)
    ways = torch.Generator(x.device).manual_seed(context.run.seed)
    way, aside = (2 * torch.rand((2, *x.shape), generator=ways, device=x.device, dtype=x.dtype) - 1).unbind()
    # Away from equal pixels, where the sign of a difference is a matter of rounding.
    middle = x.clamp(3 * SMALL, 1 - 3 * SMALL) + 2 * SMALL * aside
    here, tiny, small = (_logits(context, middle + length * way) for length in (0.0, TINY, SMALL))
    effect = (tiny - here).abs().amax(1) / (small - here).abs().amax(1).clamp_min(1e-30)
    return Determinism(
        images=len(x),
        calls=CALLS,
        difference=difference,
        changed_labels=changed,
        deterministic=difference <= RELATIVE_TOLERANCE and changed == 0,
        with_gradients=float((recorded - plain).abs().amax() / size),
        tiny_effect=float(effect.median()),
    )


def _logits(context: MeasurementContext, x: Tensor) -> Tensor:
    """The logits with a fixed random state, in double precision; gradients are recorded if `x` needs one."""
    defence = context.defence
    drawn = seeded_draws(seed_for(context.run.seed), own_generators(defence.model, defence.purifier))
    with isolated(defence), drawn, torch.set_grad_enabled(x.requires_grad):
        logits: Tensor = defence(x)
    return logits.detach().double().nan_to_num()


DETERMINISM = Measurement("determinism", Determinism, measure_determinism)


def judge_determinism(evidence: Evidence) -> Judgement:
    """FAIL for a random defence whose randomness no attack averages over, or one that recognises attacks."""
    found = evidence.record(DETERMINISM)
    measured = f"{found.changed_labels} of {found.images} labels change over {found.calls} calls"
    if found.with_gradients > RELATIVE_TOLERANCE:
        measured += f"; logits differ by {100 * found.with_gradients:.2g} % where gradients are recorded"
        return FAIL, measured, "The defence answers differently when it is attacked: attacks saw another function."
    if not found.deterministic and not evidence.plan["random"]:
        return FAIL, measured, "The defence is random, and no attack took that into account."
    if not found.deterministic:
        meaning = "The defence is random: attacks average over draws, and the accuracy is a mean over fresh draws."
        return PASS, measured, meaning
    if found.tiny_effect > MAX_TINY_EFFECT:
        measured += f"; a change of {TINY:g} has {100 * found.tiny_effect:.0f} % of the effect of {SMALL:g}"
        meaning = "The logits depend on the image like random numbers: attacks cannot follow them. Draw new noise at "
        meaning += "every call instead, so that attacks can average over it."
        return WARN, measured, meaning
    return PASS, measured, "The defence returns the same logits on every call."


CHECKS = (
    Check(2, "logits, not probabilities", judge_range, (RANGE,)),
    Check(3, "deterministic", judge_determinism, (DETERMINISM,)),
)
