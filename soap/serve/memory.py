"""Memory back to the system: after a burst of large requests the C library keeps what they had."""

import ctypes
import sys


def give_back() -> None:
    """Return freed memory where the C library can (glibc); elsewhere do nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
