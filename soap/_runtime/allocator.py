"""Let the C library keep freed memory, so that steps that use the same memory again need not ask the system for it.

glibc returns freed memory to the system once a few megabytes are free at the end of its heap. A training step frees all
its activations, so each step asks for them anew, and the system clears every page: 15 % of a step of the MNIST CNN.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""

LARGEST = 2**25
"""Bytes. Larger blocks are always returned to the system: glibc's own limit."""

KEEP_ALL, LIKE_GLIBC = 2**31 - 1, 2 * LARGEST
"""Free bytes at the end of the heap that are kept. The second is what glibc itself reaches after large blocks."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and return it on leaving; does nothing without glibc."""
    try:
        libc = ctypes.CDLL(None)
        mallopt, trim = libc.mallopt, libc.malloc_trim
    except (AttributeError, OSError, TypeError):
        yield
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST)
    mallopt(M_TRIM_THRESHOLD, KEEP_ALL)
    try:
        yield
    finally:
        mallopt(M_TRIM_THRESHOLD, LIKE_GLIBC)
        trim(0)
