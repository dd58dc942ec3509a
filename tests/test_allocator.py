"""kept_memory: blocks that are allocated again cost no page faults."""

import ctypes

import pytest
import torch

from soap._runtime.allocator import kept_memory

resource = pytest.importorskip("resource")
MEGABYTES = 8


def faults() -> int:
    """Page faults of allocating and freeing some memory, after the first time."""
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.zeros(2**18) for _ in range(MEGABYTES)]
        del blocks
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_memory_is_used_again() -> None:
    with kept_memory():
        assert faults() < MEGABYTES * 2**20 / 4096 / 10
    assert faults() >= 0  # and allocating works afterwards


def test_an_error_inside_is_raised() -> None:
    with pytest.raises(ValueError, match="inside"), kept_memory():
        raise ValueError("inside")
