"""What is watched while a reader works: the lines it reaches, and the memory it asks for."""

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
    """Too long; no reader's `except Exception` can hold it."""


@contextmanager
def reached(lines: set[tuple[str, int]]) -> Iterator[None]:
    """Add every line of the package that runs inside to `lines`."""

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


class Room:
    """Address space taken: what is only reserved counts as well, and so does memory that is given back at once.

    The system keeps the highest mark of a process (VmPeak on Linux; elsewhere nothing is measured). Where more than
    `allowed` lies free below that mark, the rest is filled, isolated: whoever takes more then moves the mark.
    """

    def __init__(self) -> None:
        self._filling: mmap.mmap | None = None
        self._mark = 0

    def allow(self, allowed: int) -> None:
        """Measure from here."""
        if self._filling is not None:
            self._filling.close()
            self._filling = None
        size, peak = sizes()
        if peak - size > allowed:
            self._filling = mmap.mmap(-1, peak - size - allowed)
        self._mark = max(peak, size + allowed)

    def overdrawn(self) -> bool:
        """Whether more than was allowed has been taken since."""
        return sizes()[1] > self._mark


def sizes() -> tuple[int, int]:
    """Bytes of address space now, and at most so far."""
    if not STATUS.exists():
        return 0, 0
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines()[:24])
    now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmSize", "VmPeak"))
    return now, most


def keep_one_heap() -> None:
    """Let threads share one heap: glibc reserves 128 MiB of addresses for every other one, whoever asks for a byte."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def starved(error: BaseException | None) -> bool:
    """Whether the error, or one behind it, is that the system had no memory to give."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
