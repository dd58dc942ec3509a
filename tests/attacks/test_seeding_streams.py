"""Random streams per sample, against plain integer arithmetic, and their independence of the batch."""

import struct
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap._runtime.seeding import streams, uniform
from soap.attacks import APGD, Attack, Square
from soap.auxiliary import JointModel

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    """SplitMix64's mixing function on Python's integers, which never overflow."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def plain(row: list[float], salts: tuple[int, ...], count: int, first: int) -> list[float]:
    bits = [struct.unpack("<i", struct.pack("<f", value))[0] for value in row]
    key = mixed(sum(bit * mixed((i + 1) * GOLDEN & MASK) for i, bit in enumerate(bits)) & MASK)
    for salt in salts:
        key = mixed((key + salt) & MASK)
    return [((mixed((key + i * GOLDEN) & MASK) >> 41) + 0.5) / 2**23 for i in range(first + 1, first + 1 + count)]


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**62), max_size=3),
    st.integers(0, 50),
)
def test_streams_equal_plain_integer_arithmetic(rows: list[list[float]], salts: list[int], first: int) -> None:
    drawn = uniform(streams(torch.tensor(rows), *salts), 5, first)
    assert drawn.dtype == torch.float32
    assert drawn.tolist() == [plain(row, tuple(salts), 5, first) for row in rows]


def test_splitmix_equals_its_published_sequence() -> None:
    # The first outputs of SplitMix64 from the state 1234567, as its implementations are checked with.
    outputs = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    expected = [((output >> 41) + 0.5) / 2**23 for output in outputs]
    assert uniform(torch.tensor([1234567]), 3)[0].tolist() == expected


def test_a_samples_numbers_do_not_depend_on_its_batch() -> None:
    x = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    together = uniform(streams(x, 3), 20)
    for order in ([4], [2, 0], [5, 4, 3, 2, 1, 0]):
        assert torch.equal(uniform(streams(x[order], 3), 20), together[order])
    assert torch.equal(uniform(streams(x.mT.contiguous().mT, 3), 20), together)  # for any memory layout
    assert torch.equal(uniform(streams(x.double(), 3), 20), together)  # and precision
    assert torch.equal(uniform(streams(x, 3), 12, first=8), together[:, 8:])  # and in any portions


@pytest.mark.gpu
@pytest.mark.parametrize("attack", [APGD(eps=0.1, steps=20), Square(eps=0.1, queries=50)], ids=["apgd", "square"])
def test_gpu_draws_the_same_numbers(attack: Attack, new_model: Callable[..., JointModel]) -> None:
    model = new_model().double().eval()
    x = torch.rand(12, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    here = attack(model, x, y)
    assert torch.equal(uniform(streams(x.cuda(), 3), 20).cpu(), uniform(streams(x, 3), 20))
    assert torch.allclose(attack(model.cuda(), x.cuda(), y.cuda()).cpu(), here, atol=1e-6)


def test_streams_differ_by_row_salt_and_order_of_values() -> None:
    x = torch.rand(1, 8, generator=torch.Generator().manual_seed(0)).repeat(4, 1)
    x[1, 3] = x[1, 3].nextafter(torch.tensor(1.0))
    x[2] = x[2].flip(0)
    keys = [*streams(x, 0).tolist(), *streams(x[:1], 1).tolist(), *streams(x[:1], 0, 0).tolist()]
    assert keys[0] == keys[3]  # equal values give equal streams
    assert len(set(keys)) == 5


@pytest.mark.parametrize("shape", [(1, 100_000), (1000, 100)])
def test_numbers_are_uniform_and_uncorrelated(shape: tuple[int, int]) -> None:
    # Black images except for one pixel: samples as similar as possible.
    x = torch.zeros(shape[0], 1000)
    x[torch.arange(shape[0]), torch.arange(shape[0])] = 1
    drawn = uniform(streams(x, 0), shape[1]).double()
    assert 0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    counts = torch.histc(drawn, bins=100, min=0, max=1)
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < chi_squared < 165  # 99 degrees of freedom: outside with a chance of about 1e-5
    centred = drawn - 0.5
    for lagged in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1]):
        if lagged.numel():
            assert lagged.mean().abs() * 12 * lagged.numel() ** 0.5 < 4.5
