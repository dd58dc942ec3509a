"""The measurement that purifiers and attacks share: results first, then passes and memory, then time in turns."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from soap.auxiliary import JointModel
from soap.bench.counting import Meter, Passes
from soap.bench.memory import with_peak
from soap.bench.row import Figures, figures
from soap.bench.timing import interleaved
from soap.shapes import Tensor

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])
Run = Callable[[], Result]
"""One run of a path over its batch."""

Prepare = Callable[[JointModel], Run[Result]]
"""A model to a run with it; what a path keeps between runs is made here."""

WARM_UP = 2
"""Runs on a GPU before one is timed: the first loads kernels and may record a graph, the second must not."""

LONG = 5.0
"""Seconds after which one run was warm-up enough."""

Watch = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


@dataclass(frozen=True, kw_only=True)
class Compared(Generic[Result]):
    """Every path's figures and result."""

    paths: dict[str, Figures]
    results: dict[str, Result]


def compare(
    prepare: Mapping[str, Prepare[Result]],
    model: JointModel,
    counting: Callable[[JointModel, Meter], JointModel],
    *,
    images: int,
    device: torch.device,
    repeats: int,
    watch: Watch = lambda what, done, total: None,
) -> Compared[Result]:
    """Run every path on `images` images: for its memory and passes, for its result, and `repeats` times for seconds."""
    passes: dict[str, Passes] = {}
    peaks: dict[str, int | None] = {}
    for place, (name, path) in enumerate(prepare.items()):
        watch("counting", place, len(prepare))
        meter = Meter(device)
        run = path(counting(model, meter))
        _, peaks[name] = with_peak(run, device)
        if device.type == "cuda":  # the first run may have tried and recorded a graph: the second only replays it
            meter.restart()
            run()
        passes[name] = meter.passes(images)
        del run
    runs = {name: path(model) for name, path in prepare.items()}
    results: dict[str, Result] = {}
    for name, run in runs.items():
        began = time.monotonic()
        for _ in range(WARM_UP if device.type == "cuda" else 1):
            results[name] = run()
            if time.monotonic() - began > LONG:
                break
    seconds = interleaved(runs, repeats=repeats, device=device, watch=watch)
    return Compared(paths=figures(seconds, images, passes, peaks), results=results)
