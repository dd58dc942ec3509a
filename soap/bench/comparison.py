"""Compare implementations (paths) of one computation: passes, peak memory, time, and whether their results agree."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.bench.counting import Meter, PassCount
from soap.bench.inputs import predicted_labels
from soap.bench.results import PathMetrics, path_metrics
from soap.bench.timing import Watch, interleaved, with_peak_memory
from soap.shapes import Float, Tensor

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])
Run = Callable[[], Result]
"""One run of a path over its batch."""

Prepare = Callable[[JointModel], Run[Result]]
"""Makes a run for a model; what a path keeps between runs is created here."""

CUDA_WARM_UP_RUNS = 2
"""Untimed runs on a GPU: the first loads kernels and may record a graph, the second replays it."""

MAX_WARM_UP_S = 5.0
"""After this time one run is enough to warm up."""

PIXEL_TOLERANCE = 1e-6
"""Pixels this close are equal: sums of steps and multiples of a step differ in their last bits."""


@dataclass(frozen=True, kw_only=True)
class PathComparison(Generic[Result]):
    """The metrics and the result of each path."""

    paths: dict[str, PathMetrics]
    results: dict[str, Result]


def compare_paths(
    prepare: Mapping[str, Prepare[Result]],
    model: JointModel,
    counting: Callable[[JointModel, Meter], JointModel],
    *,
    images: int,
    device: torch.device,
    repeats: int,
    watch: Watch = lambda what, done, total: None,
) -> PathComparison[Result]:
    """Run each path on `images` images: once for memory and passes, once for its result, `repeats` times for time."""
    passes: dict[str, PassCount] = {}
    peaks: dict[str, int | None] = {}
    for number, (name, path) in enumerate(prepare.items()):
        watch("counting", number, len(prepare))
        meter = Meter(device)
        run = path(counting(model, meter))
        _, peaks[name] = with_peak_memory(run, device)
        if device.type == "cuda":  # the first run may have recorded a graph; the second only replays it
            meter.reset()
            run()
        passes[name] = meter.passes(images)
        del run
    runs = {name: path(model) for name, path in prepare.items()}
    results: dict[str, Result] = {}
    for name, run in runs.items():
        began = time.monotonic()
        for _ in range(CUDA_WARM_UP_RUNS if device.type == "cuda" else 1):
            results[name] = run()
            if time.monotonic() - began > MAX_WARM_UP_S:
                break
    seconds = interleaved(runs, repeats=repeats, device=device, watch=watch)
    return PathComparison(paths=path_metrics(seconds, images, passes, peaks), results=results)


def same_pixels(one: Float[Tensor, "batch *shape"], two: Float[Tensor, "batch *shape"]) -> float:
    """Share of values that differ by at most `PIXEL_TOLERANCE` (and the rounding of that bound itself)."""
    return float(((one - two).abs() <= PIXEL_TOLERANCE * (1 + 1e-3)).double().mean())


def purifier_agreement(
    model: JointModel, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Shares of equal pixels, radii and labels of (images, eps) from two purifiers."""
    return {
        "pixels": same_pixels(ours[0], theirs[0]),
        "eps": float(((ours[1] - theirs[1]).abs() <= PIXEL_TOLERANCE).double().mean()),
        "labels": _same_labels(model, ours[0], theirs[0]),
    }


def attack_agreement(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Tensor, ours: Tensor, theirs: Tensor
) -> dict[str, float]:
    """Shares of equal pixels and labels of two attacks; the success rate and mean L2 norm of each."""
    return {
        "pixels": same_pixels(ours, theirs),
        "labels": _same_labels(model, ours, theirs),
        "fooled_ours": float((predicted_labels(model, ours) != y).double().mean()),
        "fooled_theirs": float((predicted_labels(model, theirs) != y).double().mean()),
        "mean_l2_ours": float(row_norms(ours - x).mean()),
        "mean_l2_theirs": float(row_norms(theirs - x).mean()),
    }


def _same_labels(model: JointModel, one: Tensor, two: Tensor) -> float:
    return float((predicted_labels(model, one) == predicted_labels(model, two)).double().mean())
