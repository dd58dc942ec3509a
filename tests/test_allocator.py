"""kept_memory: blocks that are allocated again cost no page faults."""

import ctypes

import pytest
import torch

from soap._runtime.allocator import kept_memory

resource = pytest.importorskip("resource")
PAGES_PER_MB = 2**20 // 4096


def faults(blocks: int, megabytes: int) -> int:
    """Page faults of allocating and freeing blocks of this size: the fewest of several times.

    Once in a while a small object takes the start of a freed block, and the next block needs new pages.
    """
    counts = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.zeros(megabytes * 2**18) for _ in range(blocks)]
        del held
        counts.append(int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
    return min(counts)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_memory_is_used_again() -> None:
    with kept_memory():
        assert faults(64, 1) < 64 * PAGES_PER_MB / 10
    assert faults(1, 256) > 256 * PAGES_PER_MB / 1000  # a large block is returned again afterwards


def test_an_error_inside_is_raised() -> None:
    with pytest.raises(ValueError, match="inside"), kept_memory():
        raise ValueError("inside")
