"""Keep freed memory in the process, so that tensors on the CPU do not get new pages from the system at every step."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers of two settings of malloc: from how much free memory on it returns some to the system, and the size
from which a block comes from the system directly and returns there when it is freed."""

KEPT_BYTES, BLOCK_BYTES = 512 * 2**20, 128 * 2**20


def keep_freed_memory() -> None:
    """Let glibc keep up to 512 MiB of freed memory for later tensors; nothing changes with another C library.

    Otherwise the activations of each pass are new pages, which the system clears first: on an MNIST CNN a fifth of the
    time, more on a busy machine. The setting belongs to the process and stays.
    """
    if os.name != "posix":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES)
