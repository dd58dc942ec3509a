"""Compare implementations (paths) of one computation: passes, peak memory, time, and whether their results agree."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.bench.counting import Meter, PassCount
from soap.bench.floor import Rates, Work, floor_of
from soap.bench.inputs import BenchModel, predicted_labels
from soap.bench.results import OURS, BenchRow, path_metrics, provenance
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


def compare_paths(
    what: str,
    bench: BenchModel,
    paths: Mapping[str, Prepare[Result]],
    *,
    inputs: str,
    settings: object,
    case: Mapping[str, float | str],
    counting: Callable[[JointModel, Meter], JointModel],
    agreement: Callable[[Result, Result], Mapping[str, float]],
    work: Callable[[Sequence[PassCount]], Work],
    rates: Rates,
    device: torch.device,
    repeats: int,
    watch: Watch,
) -> BenchRow:
    """Run each path on case["batch"] images: once for memory and passes, once for its result, `repeats` times for time.

    counting: makes a model that counts its passes. agreement: compares our result with another. work: the least
    work, given the passes of the paths.
    """
    images = int(case["batch"])
    passes: dict[str, PassCount] = {}
    peaks: dict[str, int | None] = {}
    for number, (name, prepare) in enumerate(paths.items()):
        watch("counting", number, len(paths))
        meter = Meter(device)
        run = prepare(counting(bench.model, meter))
        _, peaks[name] = with_peak_memory(run, device)
        if device.type == "cuda":  # the first run may have recorded a graph; the second only replays it
            meter.reset()
            run()
        passes[name] = meter.passes(images)
        del run
    runs = {name: prepare(bench.model) for name, prepare in paths.items()}
    results: dict[str, Result] = {}
    for name, run in runs.items():
        began = time.monotonic()
        for _ in range(CUDA_WARM_UP_RUNS if device.type == "cuda" else 1):
            results[name] = run()
            if time.monotonic() - began > MAX_WARM_UP_S:
                break
    seconds = interleaved(runs, repeats=repeats, device=device, watch=watch)
    return BenchRow(
        what=what,
        model=bench.model.name,
        weights=bench.weights,
        inputs=inputs,
        settings=repr(settings),
        case=case,
        paths=path_metrics(seconds, images, passes, peaks),
        agreement={name: agreement(results[OURS], result) for name, result in results.items() if name != OURS},
        floor=floor_of(work([count for count in passes.values() if count.forward]), rates),
        notes=bench.notes,
        provenance=provenance(device),
    )


def same_pixels(one: Float[Tensor, "batch *shape"], two: Float[Tensor, "batch *shape"]) -> float:
    """Share of values that differ by at most `PIXEL_TOLERANCE` (and the rounding of that bound itself)."""
    return _share((one - two).abs() <= PIXEL_TOLERANCE * (1 + 1e-3))


def purifier_agreement(
    model: JointModel, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Shares of equal pixels, radii and labels of (images, eps) from two purifiers."""
    return {
        "pixels": same_pixels(ours[0], theirs[0]),
        "eps": _share((ours[1] - theirs[1]).abs() <= PIXEL_TOLERANCE),
        "labels": _share(predicted_labels(model, ours[0]) == predicted_labels(model, theirs[0])),
    }


def attack_agreement(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Tensor, ours: Tensor, theirs: Tensor
) -> dict[str, float]:
    """Shares of equal pixels and labels of two attacks; the success rate and mean L2 norm of each."""
    our_labels, their_labels = predicted_labels(model, ours), predicted_labels(model, theirs)
    return {
        "pixels": same_pixels(ours, theirs),
        "labels": _share(our_labels == their_labels),
        "fooled_ours": _share(our_labels != y),
        "fooled_theirs": _share(their_labels != y),
        "mean_l2_ours": float(row_norms(ours - x).mean()),
        "mean_l2_theirs": float(row_norms(theirs - x).mean()),
    }


def _share(true: Tensor) -> float:
    return float(true.double().mean())
