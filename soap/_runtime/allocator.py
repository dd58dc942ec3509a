"""Let the C library keep freed memory, so that steps that use the same memory again need not ask the system for it.

glibc returns freed memory to the system once a few megabytes are free at the end of its heap, and large blocks at once.
A training step frees all its activations, so each step asks for them anew, and the system clears every page: 15 % of a
step of SOAP-DR on the MNIST CNN, 30 % of one of SOAP-RP on the ResNet-18. Purification in a suite is the same.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Parameters of glibc's mallopt: free bytes that are kept at the end of the heap; bytes from which a block is mapped
alone, so that it is returned when it is freed; number of blocks that may be mapped."""

WITHIN = {M_TRIM_THRESHOLD: 2**31 - 1, M_MMAP_MAX: 0}
AFTER = {M_TRIM_THRESHOLD: 2**26, M_MMAP_MAX: 2**16, M_MMAP_THRESHOLD: 2**25}
"""The values to which glibc itself adapts after large blocks; its first values cannot be restored."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and return it on leaving; does nothing without glibc."""
    mallopt = _libc_function("mallopt")
    if mallopt is None:
        yield
        return
    for parameter, value in WITHIN.items():
        mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in AFTER.items():
            mallopt(parameter, value)
        return_free_memory()


def return_free_memory() -> None:
    """Return freed memory that the C library still holds to the system; does nothing without glibc."""
    trim = _libc_function("malloc_trim")
    if trim is not None:
        trim(0)


def _libc_function(name: str) -> Callable[..., object] | None:
    try:
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    except (AttributeError, OSError, TypeError):
        return None
