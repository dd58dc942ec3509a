"""Measure calls: seconds, peak memory, passes through a model, floating-point operations, and the rate of the device.

Calls are timed alternately, so that disturbances affect all alike. The counters of passes are tensors on the device and
each count is an operation there, so a replayed CUDA graph is counted like the calls that it replaces. Operations are
those of the matrix products and convolutions. Divided by the rate of the device they are the floor: a lower bound on
the time of an algorithm. Memory traffic is not counted, so small networks on a GPU, which it limits, stay far from the
floor.
"""

import copy
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from soap._runtime import devices
from soap._runtime.allocator import return_free_memory
from soap._runtime.isolation import frozen
from soap.auxiliary import JointModel
from soap.shapes import Tensor

Result = TypeVar("Result")

Watch = Callable[[str, int, int], None]
"""Called with the current work, how much of it is done, and the total."""

Operations = tuple[float, float]
"""Floating-point operations of a forward and of a backward pass."""

PROC_STATUS, PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK_RSS = "5"  # proc(5): sets the peak resident set size to the current one


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, sample standard deviation (0 for one value), median, fastest, quartiles and number of timings."""
    lower, median, upper = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    return {
        "mean": statistics.fmean(seconds),
        "deviation": statistics.stdev(seconds) if len(seconds) > 1 else 0.0,
        "median": median,
        "fastest": min(seconds),
        "lower_quartile": lower,
        "upper_quartile": upper,
        "repeats": len(seconds),
    }


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, from an idle device to an idle device."""
    synchronise(device)
    began = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - began


def interleaved(
    runs: Mapping[str, Callable[[], object]], *, repeats: int, device: torch.device, watch: Watch
) -> dict[str, list[float]]:
    """Time each run `repeats` times, alternately (A B A B ...); the caller warms up before."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name, run in runs.items():
            seconds[name].append(seconds_of(run, device))
        watch("timing", turn + 1, repeats)
    return seconds


def with_peak_memory(run: Callable[[], Result], device: torch.device) -> tuple[Result, int | None]:
    """The result of `run` and its peak memory in bytes beyond what was in use before; None if not measurable.

    On CUDA this is torch's allocation, on Linux the growth of the resident set. Measure the first call: a replayed CUDA
    graph allocates nothing, since its memory was allocated when it was recorded.
    """
    gc.collect()
    if device.type == "cuda":
        synchronise(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        synchronise(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    return_free_memory()  # otherwise `run` may use resident memory that was freed before, and nothing grows
    try:
        PROC_CLEAR_REFS.write_text(RESET_PEAK_RSS)
        before = _resident_bytes("VmRSS")
    except OSError:
        return run(), None
    result = run()
    return result, max(0, _resident_bytes("VmHWM") - before)


def _resident_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (peak), in bytes."""
    lines = PROC_STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def measure_rate(device: torch.device, precision: str = "fp32") -> float:
    """Operations a second of the faster of a large matrix product and a large convolution.

    With torch's default settings: on a GPU an fp32 convolution may use TF32 while a matrix product does not.
    """
    side, images, channels = (8192, 256, 256) if device.type != "cpu" else (1024, 8, 64)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)  # not zeros: some chips process them faster

    matrix, other = draw(side, side), draw(side, side)
    batch, kernel = draw(images, channels, 32, 32), draw(channels, channels, 3, 3)
    with torch.no_grad(), devices.autocast(device, precision):
        product = _fastest(lambda: matrix @ other, device)
        convolution = min(
            _fastest(partial(F.conv2d, *(t.to(memory_format=layout) for t in (batch, kernel)), padding=1), device)
            for layout in (torch.contiguous_format, torch.channels_last)
        )
    return max(2 * side**3 / product, 2 * images * channels**2 * 9 * 32 * 32 / convolution)


def _fastest(run: Callable[[], object], device: torch.device, tries: int = 7) -> float:
    """The shortest of several timings after a warm-up."""
    run()
    return min(seconds_of(run, device) for _ in range(tries))


@dataclass(frozen=True, kw_only=True)
class PassCount:
    """Forward and backward passes per image."""

    forward: float
    backward: float


class Meter:
    """Counts samples; copies of a model that contains a meter share it."""

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Meter":
        return self

    def mark(self, output: Tensor) -> Tensor:
        """`output` [samples, ...] itself, counted now as forward, and as backward when a gradient passes through it."""
        self.counts[0].add_(len(output))
        if not (torch.is_grad_enabled() and output.requires_grad):
            return output
        marked: Tensor = _Mark.apply(output, self.counts)  # type: ignore[no-untyped-call]
        return marked

    def reset(self) -> None:
        """Set the counts to zero."""
        self.counts.zero_()

    def passes(self, images: int) -> PassCount:
        """The counts divided by `images`."""
        forward, backward = self.counts.tolist()
        return PassCount(forward=forward / images, backward=backward / images)


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, counts: Tensor) -> Tensor:
        ctx.counts = counts
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.counts[1].add_(len(gradients[0]))
        return gradients[0], None


def counting_losses(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts evaluations of its auxiliary loss (several views count as one)."""
    copied = copy.deepcopy(model)
    loss = copied.auxiliary.loss
    copied.auxiliary.loss = lambda model, x: meter.mark(loss(model, x))  # type: ignore[method-assign]
    return copied


def counting_logits(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts its own calls."""
    copied = copy.deepcopy(model)
    copied.register_forward_hook(lambda module, arguments, logits: meter.mark(logits))
    return copied


def counting_features(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts passes of its encoder: each view of each image counts."""
    copied = copy.deepcopy(model)
    copied.encoder.register_forward_hook(lambda module, arguments, features: meter.mark(features))
    return copied


def operations_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Operations:
    """The operations per sample of `function(x)`, and of its gradient with respect to everything that requires one."""
    with torch.enable_grad():
        with FlopCounterMode(display=False) as forward:
            value = function(x).sum()
        with FlopCounterMode(display=False) as backward:
            torch.autograd.backward(value)
    return forward.get_total_flops() / len(x), backward.get_total_flops() / len(x)


def gradient_operations(function: Callable[[Tensor], Tensor], model: JointModel, x: Tensor) -> Operations:
    """The operations per sample of the function and of its gradient with respect to the images `x` alone."""
    with frozen(model):
        return operations_of(function, x[:2].clone().requires_grad_())
