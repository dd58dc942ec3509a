"""Seconds of several paths, taken in turns so that whatever slows the machine slows them alike."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean, sample standard deviation (0 of one), median, fastest and quartiles of repeated timings, in seconds."""

    mean: float
    deviation: float
    median: float
    fastest: float
    lower_quartile: float
    upper_quartile: float
    repeats: int


def spread(seconds: Sequence[float]) -> Spread:
    """How repeated timings lie."""
    ordered = sorted(seconds)
    return Spread(
        mean=statistics.fmean(ordered),
        deviation=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        median=quantile(ordered, 0.5),
        fastest=ordered[0],
        lower_quartile=quantile(ordered, 0.25),
        upper_quartile=quantile(ordered, 0.75),
        repeats=len(ordered),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ascending values lie, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    below, above = math.floor(place), math.ceil(place)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that one call takes, from an idle device to an idle device."""
    synchronise(device)
    began = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - began


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    device: torch.device,
    watch: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> dict[str, Spread]:
    """Time every run `repeats` times in turns (A B A B ...); warming up is the caller's business."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name, run in runs.items():
            seconds[name].append(seconds_of(run, device))
        watch("timing", turn + 1, repeats)
    return {name: spread(values) for name, values in seconds.items()}
