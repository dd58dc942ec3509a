"""Measure calls: seconds and peak memory. Calls are timed alternately, so that disturbances affect all alike."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

Result = TypeVar("Result")

Watch = Callable[[str, int, int], None]
"""Called with the current work, how much of it is done, and the total."""

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
