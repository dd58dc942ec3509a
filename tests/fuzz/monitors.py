"""Monitors of a reader under test: the lines it reaches and the memory it allocates."""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = str(Path(__file__).parents[2] / "soap")
STATUS = Path("/proc/self/status")
M_ARENA_MAX = -8


class Hang(BaseException):
    """The time limit was exceeded; a reader's `except Exception` cannot catch it."""


@contextmanager
def traced_lines(lines: set[tuple[str, int]]) -> Iterator[None]:
    """Add every line of the package that runs in the block to `lines`."""

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(PACKAGE) else None

    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(None)


class MemoryMonitor:
    """Detects allocations above a limit, including memory that is only reserved or freed at once.

    Linux keeps the peak address space of a process (VmPeak); on other systems nothing is measured. If more than the
    limit is free below the earlier peak, the rest is reserved here, so that a larger allocation raises the peak.
    """

    def __init__(self) -> None:
        self._reserved: mmap.mmap | None = None
        self._limit = 0

    def allow(self, allowed: int) -> None:
        """Start to measure with a limit of `allowed` bytes."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        size, peak = address_space()
        if peak - size > allowed:
            self._reserved = mmap.mmap(-1, peak - size - allowed)
        self._limit = max(peak, size + allowed)

    def is_exceeded(self) -> bool:
        """Return whether more than the limit was allocated since `allow`."""
        return address_space()[1] > self._limit


def address_space() -> tuple[int, int]:
    """Return the bytes of address space of this process: now, and at its peak."""
    if not STATUS.exists():
        return 0, 0
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines()[:24])
    now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmSize", "VmPeak"))
    return now, peak


def use_one_malloc_arena() -> None:
    """Make all threads share one heap: glibc otherwise reserves 128 MiB of addresses per thread."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def is_memory_error(error: BaseException | None) -> bool:
    """Return whether the error, or one of its causes, is a failed allocation."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
