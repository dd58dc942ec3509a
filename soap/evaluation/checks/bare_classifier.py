"""Check 15: the bare classifier on the same points, and the cost of the defence."""

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
from soap.evaluation.checks.check import Check, Evidence, Judgement, Measurement, not_run, passed, percent, warned
from soap.evaluation.checks.context import MeasurementContext
from soap.evaluation.checks.optimisation import eager
from soap.evaluation.summary import paired_difference
from soap.shapes import Tensor

IMAGES = 16
REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class CallCost:
    """Passes of an image through the classifier's first layer in one call, and seconds for each image."""

    forward: float
    backward: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DefenceCost:
    """Cost of a call of the defence and of the classifier alone. separable: whether the classifier is known."""

    defended: CallCost
    bare: CallCost
    images: int
    separable: bool


def measure(context: MeasurementContext) -> DefenceCost:
    """Count passes through the first layer, and measure time."""
    x, _ = context.few(IMAGES)
    defence = context.defence
    alone = defence.seen_by(BARE) or defence
    with eager(defence), isolated(defence), torch.no_grad():
        layer = first_layer(alone, x)
        whole, bare = passes(layer, defence, x), passes(layer, alone, x)
    with isolated(defence), torch.no_grad():
        times = [_seconds(defence, x), _seconds(alone, x)]
    return DefenceCost(
        defended=CallCost(forward=whole.forward, backward=whole.backward, seconds=times[0]),
        bare=CallCost(forward=bare.forward, backward=bare.backward, seconds=times[1]),
        images=len(x),
        separable=defence.classifier is not None,
    )


@dataclass
class PassesPerImage:
    """Passes of each image through a layer."""

    forward: float = 0.0
    backward: float = 0.0


def first_layer(model: nn.Module, x: Tensor) -> nn.Module | None:
    """The first module with its own weights that `x` passes; None where there is none."""
    met: list[nn.Module] = []
    with ExitStack() as leave:
        for module in model.modules():
            if module._parameters and any(weight is not None for weight in module._parameters.values()):
                hook = module.register_forward_pre_hook(lambda module, inputs: met.append(module))
                leave.callback(hook.remove)
        model(x[:1])
    return met[0] if met else None


def passes(layer: nn.Module | None, model: Callable[[Tensor], Tensor], x: Tensor) -> PassesPerImage:
    """The passes through `layer` in one call of `model` on `x`."""
    counted = PassesPerImage()
    if layer is None:
        return counted

    def count_backward(gradient: Tensor) -> None:
        counted.backward += len(gradient) / len(x)

    def count_forward(module: nn.Module, inputs: Any, output: Any) -> None:
        counted.forward += len(output) / len(x)
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


MEASUREMENT: Measurement[DefenceCost] = Measurement(fact="cost", record=DefenceCost, measure=measure, check=15)


def judge(evidence: Evidence) -> Judgement:
    """The gain with its interval; WARN where the classifier alone is worse on clean images than behind the defence."""
    cost, summary = evidence.record(MEASUREMENT), evidence.summary
    whole, alone = cost.defended, cost.bare
    passed_through = (
        f"{whole.forward:.1f} forward and {whole.backward:.1f} backward passes an image (alone "
        f"{alone.forward:.1f} and {alone.backward:.1f}), {whole.seconds / alone.seconds:.1f} x the time"
    )
    if not evidence.plan["separable"]:
        if evidence.record(optimisation.MEASUREMENT).found:
            return not_run(f"The classifier is unknown, so the gain of the defence is unknown; {passed_through}.")
        return passed(passed_through, "The network is its own classifier; there is nothing to compare.")
    if not evidence.plan["purifies"]:
        return passed(passed_through, "There is no purifier before the classifier.")
    gain, clean = summary.worst.gain, summary.clean.bare
    if gain is None or clean is None:
        return not_run("The predictions of the classifier alone are not stored.")
    measured = f"gain {_signed(gain[0])} [{_signed(gain[1])}, {_signed(gain[2])}] points; {passed_through}"
    ahead, low, _ = paired_difference(summary.clean.defended, clean)
    if low > 0:
        return warned(
            f"{percent(ahead)} ahead on clean images; {measured}",
            "The classifier alone is worse on clean images: does it get them as in training (normalisation)? "
            "Otherwise gain and gradients are those of another network.",
        )
    return passed(measured, "The classifier alone was measured on the same points.")


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


CHECK: Check = Check(number=15, name="bare classifier compared", judge=judge)
