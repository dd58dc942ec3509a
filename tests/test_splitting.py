"""Work in parts gives what it gives in one, whatever the memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from soap._runtime.splitting import autograd_bytes, in_chunks, padded_to


class Small:
    """A machine with room for so many rows: more of them is out of memory."""

    def __init__(self, room: int, error: RuntimeError) -> None:
        self.room, self.error = room, error
        self.sizes: list[int] = []
        self.freed = 0

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        if len(x) > self.room:
            raise self.error
        self.sizes.append(len(x))
        return x + 1, y * 2

    def free(self) -> None:
        self.freed += 1


ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to"),
)


@given(rows=st.integers(1, 40), most=st.none() | st.integers(1, 50), room=st.integers(1, 50), which=st.integers(0, 1))
def test_parts_are_joined_in_order_and_memory_running_out_halves_them(rows, most, room, which):
    machine = Small(room, ERRORS[which])
    x, y = torch.arange(rows * 2.0).reshape(rows, 2), torch.arange(rows)
    got = in_chunks(machine, x, y, max_rows=most, release=machine.free)
    assert torch.equal(got[0], x + 1)
    assert torch.equal(got[1], y * 2)
    assert sum(machine.sizes) == rows
    assert max(machine.sizes) <= min(room, most or rows)
    assert (machine.freed > 0) == (min(most or rows, rows) > room)


@given(rows=st.integers(1, 40), most=st.none() | st.integers(1, 50), room=st.integers(1, 50), least=st.integers(1, 30))
def test_parts_are_padded_as_far_as_memory_and_the_most_allow(rows, most, room, least):
    machine = Small(room, ERRORS[0])
    x, y = torch.arange(rows * 2.0).reshape(rows, 2), torch.arange(rows)
    got = in_chunks(machine, x, y, max_rows=most, min_rows=least, release=machine.free)
    assert torch.equal(got[0], x + 1)
    assert torch.equal(got[1], y * 2)
    assert max(machine.sizes) <= min(room, most or max(rows, least))
    if room >= max(rows, least):
        assert min(machine.sizes) >= min(least, most or least)


def test_padding_repeats_the_first_row():
    x = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(padded_to(x, 5), torch.cat([x, x[:1], x[:1]]))
    assert padded_to(x, 3) is x
    assert padded_to(x, 2) is x


def test_a_single_row_that_does_not_fit_is_an_error():
    machine = Small(0, ERRORS[0])
    with pytest.raises(torch.OutOfMemoryError):
        in_chunks(machine, torch.zeros(4), torch.zeros(4), release=machine.free)


def test_other_errors_are_not_swallowed():
    machine = Small(0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        in_chunks(machine, torch.zeros(4), torch.zeros(4), release=machine.free)
    assert machine.freed == 0


def test_bytes_kept_counts_what_autograd_saves():
    """Linear saves nothing of its input when frozen; tanh saves its output; the square saves its input."""
    frozen = nn.Linear(10, 100).requires_grad_(False)
    x = torch.rand(3, 10)
    assert autograd_bytes(lambda x: frozen(x).sum(1), x) == 0
    assert autograd_bytes(lambda x: frozen(x).tanh().sum(1), x) == 3 * 100 * 4
    assert autograd_bytes(lambda x: frozen(x).tanh().square().sum(1), x) == 3 * 100 * 4  # the same tensor, kept once


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_row_of_a_large_batch_keeps_what_it_keeps_alone(context):
    """The whole batch's storage was counted for it, and under inference mode nothing at all."""
    x = torch.rand(500, 10)
    with context():
        assert autograd_bytes(lambda x: x.square().tanh().sum(1), x[:1]) == 10 * 4
        assert autograd_bytes(lambda x: x.square().tanh().sum(1), torch.rand(500, 10)[:1]) == 10 * 4
