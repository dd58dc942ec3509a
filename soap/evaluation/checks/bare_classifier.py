"""Check 15: the bare classifier under its own strongest attack, and the cost of the defence."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.defence import BARE
from soap.evaluation.checks import optimisation
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
from soap.evaluation.checks.context import MeasurementContext
from soap.evaluation.paired import paired_gain
from soap.evaluation.protocols import CLASSIFIER
from soap.evaluation.summary import classifier_gain
from soap.shapes import Tensor

IMAGES = 16
REPEATS = 3
MAX_REJECTED = 0.5


@dataclass(frozen=True, kw_only=True)
class CallCost:
    """Passes of an image through the classifier's first layer in one call, and seconds for each image."""

    forward: float
    backward: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DefenceCost:
    """Cost of a call of the defence and of the classifier alone. separable: whether the classifier is known.

    rejected: share of clean images that a defence with a detector rejects.
    """

    defended: CallCost
    bare: CallCost
    images: int
    separable: bool
    rejected: float = 0.0


def measure(context: MeasurementContext) -> DefenceCost:
    """Count passes through the first layer, and measure time."""
    x, _ = context.few(IMAGES)
    defence = context.defence
    alone = defence.seen_by(BARE) or defence
    with optimisation.eager(defence), isolated(defence), torch.no_grad():
        layer = first_layer(alone, x)
        counts = [passes(layer, model, x) for model in (defence, alone)]
    with isolated(defence), torch.no_grad():
        times = [_seconds(model, x) for model in (defence, alone)]
    defended, bare = (CallCost(**passed, seconds=took) for passed, took in zip(counts, times, strict=True))
    with isolated(defence):
        rejected = torch.cat([defence.rejects(part) for part in torch.split(context.x, context.run.batch_size)])
    return DefenceCost(
        defended=defended,
        bare=bare,
        images=len(x),
        separable=defence.classifier is not None,
        rejected=float(rejected.double().mean()),
    )


def first_layer(model: nn.Module, x: Tensor) -> nn.Module | None:
    """The first module with its own weights that `x` passes; None where there is none."""
    met: list[nn.Module] = []
    with ExitStack() as leave:
        for module in model.modules():
            if any(weight is not None for weight in module._parameters.values()):
                hook = module.register_forward_pre_hook(lambda module, inputs: met.append(module))
                leave.callback(hook.remove)
        model(x[:1])
    return met[0] if met else None


def passes(layer: nn.Module | None, model: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, float]:
    """The forward and backward passes of each image through `layer` in one call of `model` on `x`."""
    counted = {"forward": 0.0, "backward": 0.0}
    if layer is None:
        return counted

    def count_backward(gradient: Tensor) -> None:
        counted["backward"] += len(gradient) / len(x)

    def count_forward(module: nn.Module, inputs: Any, output: Any) -> None:
        counted["forward"] += len(output) / len(x)
        if output.requires_grad:
            output.register_hook(count_backward)

    hook = layer.register_forward_hook(count_forward)
    try:
        model(x)
    finally:
        hook.remove()
    return counted


def _seconds(model: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The shortest of a few calls, for each image."""
    model(x)
    times = []
    for _ in range(REPEATS):
        began = time.monotonic()
        model(x).argmax(1).tolist()  # waits for the device
        times.append(time.monotonic() - began)
    return max(min(times), 1e-9) / len(x)


MEASUREMENT = Measurement("cost", DefenceCost, measure)


def judge(evidence: Evidence) -> Judgement:
    """The gain over the classifier's own worst case; FAIL for a detector that rejects most clean images.

    WARN where the classifier alone is worse on clean images than behind the defence.
    """
    cost, summary = evidence.record(MEASUREMENT), evidence.summary
    whole, alone = cost.defended, cost.bare
    counts = (
        f"{whole.forward:.1f} forward and {whole.backward:.1f} backward passes an image (alone "
        f"{alone.forward:.1f} and {alone.backward:.1f}), {whole.seconds / alone.seconds:.1f} x the time"
    )
    if cost.rejected > MAX_REJECTED:
        meaning = "The detector rejects clean images: a defence that answers nothing cannot be wrong, and is of no use."
        return FAIL, f"{percent(cost.rejected)} of the clean images rejected; {counts}", meaning
    gain, clean = classifier_gain(summary), summary.clean.bare
    if clean is not None and evidence.plan["purifies"] and CLASSIFIER not in summary.done:
        raise NotMeasuredError(f"The classifier was not attacked on its own: run {CLASSIFIER}; {counts}.")
    if gain is None or clean is None:
        if evidence.record(optimisation.MEASUREMENT).found:
            raise NotMeasuredError(f"The classifier is unknown, so the gain of the defence is unknown; {counts}.")
        return PASS, counts, "The network is its own classifier; there is nothing to compare."
    if not evidence.plan["purifies"]:
        return PASS, counts, "There is no purifier before the classifier."
    measured = (
        f"gain {100 * gain[0]:+.1f} [{100 * gain[1]:+.1f}, {100 * gain[2]:+.1f}] points over the classifier's own "
    )
    measured += f"worst case; {counts}"
    ahead, low, _ = paired_gain(summary.clean.values, clean)
    if low > 0:
        meaning = "The classifier alone is worse on clean images: does it get them as in training (normalisation)? "
        meaning += "Otherwise gain and gradients are those of another network."
        return WARN, f"{percent(ahead)} ahead on clean images; {measured}", meaning
    return PASS, measured, "The classifier alone was measured under its own strongest attack, on the same images."


CHECKS = (Check(15, "bare classifier compared", judge, (MEASUREMENT,)),)
