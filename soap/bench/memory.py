"""The most memory that a call takes at once, beyond what was in use before it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from soap.bench.timing import synchronise

Result = TypeVar("Result")

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets the peak resident set size to the current one


def with_peak(run: Callable[[], Result], device: torch.device) -> tuple[Result, int | None]:
    """What `run` returns, and the bytes it took: on CUDA what torch allocated, on Linux growth of the resident set.

    None where neither can be measured. The first call of a function shows the most: a replayed CUDA graph allocates
    nothing, since its memory was taken when it was recorded.
    """
    gc.collect()
    if device.type == "cuda":
        synchronise(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        synchronise(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not _restart_peak():
        return run(), None
    before_all = _resident("VmRSS")
    result = run()
    return result, max(0, _resident("VmHWM") - before_all)


def _restart_peak() -> bool:
    """Hand freed memory back and let the kernel's high-water mark start anew; False where that cannot be done."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # glibc alone
        CLEAR.write_text(RESET_PEAK)
        return _resident("VmHWM") > 0
    except (OSError, AttributeError, TypeError):
        return False


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (peak), in bytes."""
    lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)
