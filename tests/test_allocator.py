"""kept_memory: blocks that are allocated again cost no page faults."""

import ctypes

import pytest
import torch

from soap._runtime.allocator import kept_memory

resource = pytest.importorskip("resource")
MEGABYTES = 64


def faults(blocks: int) -> int:
    """Page faults of allocating and freeing the memory in some blocks: the fewest of several times.

    Once in a while a small object takes the start of a freed block, and the next block needs new pages.
    """
    counts = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.zeros(MEGABYTES * 2**18 // blocks) for _ in range(blocks)]
        del held
        counts.append(int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
    return min(counts)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
@pytest.mark.parametrize("blocks", [1, 64])
def test_memory_is_used_again(blocks: int) -> None:
    with kept_memory():
        assert faults(blocks) < MEGABYTES * 2**20 / 4096 / 10
    assert faults(1) > MEGABYTES * 2**20 / 4096 / 1000  # a large block is returned again afterwards


def test_an_error_inside_is_raised() -> None:
    with pytest.raises(ValueError, match="inside"), kept_memory():
        raise ValueError("inside")
