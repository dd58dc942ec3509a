"""Processing in chunks gives the same result as processing at once, with any amount of memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from soap._runtime.splitting import autograd_bytes, in_chunks, padded_to


class LimitedMemory:
    """A function that raises an out-of-memory error for more than `capacity` samples."""

    def __init__(self, capacity: int, error: RuntimeError) -> None:
        self.capacity, self.error = capacity, error
        self.sizes: list[int] = []
        self.released = 0

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        if len(x) > self.capacity:
            raise self.error
        self.sizes.append(len(x))
        return x + 1, y * 2

    def release(self) -> None:
        self.released += 1


ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to"),
)


COUNTS = st.integers(1, 50)


@given(rows=st.integers(1, 40), max_rows=st.none() | COUNTS, capacity=COUNTS, error=st.sampled_from(ERRORS))
def test_chunks_are_joined_in_order_and_halved_when_memory_runs_out(rows, max_rows, capacity, error):
    function = LimitedMemory(capacity, error)
    x, y = torch.arange(rows * 2.0).reshape(rows, 2), torch.arange(rows)
    got = in_chunks(function, x, y, max_rows=max_rows, release=function.release)
    assert torch.equal(got[0], x + 1)
    assert torch.equal(got[1], y * 2)
    assert sum(function.sizes) == rows
    assert max(function.sizes) <= min(capacity, max_rows or rows)
    assert (function.released > 0) == (min(max_rows or rows, rows) > capacity)


@given(rows=st.integers(1, 40), max_rows=st.none() | COUNTS, capacity=COUNTS, min_rows=st.integers(1, 30))
def test_chunks_are_padded_to_min_rows_within_memory_and_max_rows(rows, max_rows, capacity, min_rows):
    function = LimitedMemory(capacity, ERRORS[0])
    x, y = torch.arange(rows * 2.0).reshape(rows, 2), torch.arange(rows)
    got = in_chunks(function, x, y, max_rows=max_rows, min_rows=min_rows, release=function.release)
    assert torch.equal(got[0], x + 1)
    assert torch.equal(got[1], y * 2)
    assert max(function.sizes) <= min(capacity, max_rows or max(rows, min_rows))
    if capacity >= max(rows, min_rows):
        assert min(function.sizes) >= min(min_rows, max_rows or min_rows)


def test_padding_repeats_the_first_row():
    x = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(padded_to(x, 5), torch.cat([x, x[:1], x[:1]]))
    assert padded_to(x, 3) is x
    assert padded_to(x, 2) is x


def test_out_of_memory_for_a_single_sample_is_raised():
    function = LimitedMemory(0, ERRORS[0])
    with pytest.raises(torch.OutOfMemoryError):
        in_chunks(function, torch.zeros(4), torch.zeros(4), release=function.release)


def test_other_errors_are_raised_at_once():
    function = LimitedMemory(0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        in_chunks(function, torch.zeros(4), torch.zeros(4), release=function.release)
    assert function.released == 0


def test_autograd_bytes_counts_saved_tensors():
    """A frozen Linear saves nothing of its input; tanh saves its output; the square saves its input."""
    frozen = nn.Linear(10, 100).requires_grad_(False)
    x = torch.rand(3, 10)
    assert autograd_bytes(lambda x: frozen(x).sum(1), x) == 0
    assert autograd_bytes(lambda x: frozen(x).tanh().sum(1), x) == 3 * 100 * 4
    assert autograd_bytes(lambda x: frozen(x).tanh().square().sum(1), x) == 3 * 100 * 4  # the same tensor, saved once


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_autograd_bytes_of_a_view_counts_the_view_only(context):
    """Not the storage of the whole batch; the same number also under inference mode."""
    x = torch.rand(500, 10)
    with context():
        assert autograd_bytes(lambda x: x.square().tanh().sum(1), x[:1]) == 10 * 4
        assert autograd_bytes(lambda x: x.square().tanh().sum(1), torch.rand(500, 10)[:1]) == 10 * 4
