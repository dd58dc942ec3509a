"""Random numbers that belong to a row: drawn from a seed and the row's own values, whoever shares its batch.

A generator deals its numbers out over the batch, so that a row's share depends on who came before it. Here every row
has a stream of its own, keyed by its values: an image meets the same numbers alone or in any batch, on any device, and
after a run was taken up again half-way. Nothing is kept between calls and no random state is touched.
"""

import torch

from soap.shapes import Float, Int, Tensor

GOLDEN = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed number: the stride of SplitMix64."""


def streams(x: Float[Tensor, "batch *shape"], *salts: int) -> Int[Tensor, "batch"]:
    """One stream a row, told apart by the row's values (in single precision) and by `salts`, such as a seed."""
    bits = x.flatten(1).float().contiguous().view(torch.int32).long()
    weights = _mixed(_counts(bits.shape[1], 1, x.device) * GOLDEN)
    keys = _mixed((bits * weights).sum(1))  # whole numbers: the order of summation does not matter
    for salt in salts:
        keys = _mixed(keys + salt)
    return keys


def uniform(stream: Int[Tensor, "batch"], count: int, first: int = 0) -> Float[Tensor, "batch count"]:
    """Numbers `first` to `first + count` of every stream, uniform in the open interval (0, 1), in single precision."""
    mixed = _mixed(stream[:, None] + _counts(count, first + 1, stream.device) * GOLDEN)
    return (_shifted(mixed, 41) + 0.5) * 2**-23  # 23 bits and a half: exact in single precision, never 0 or 1


def _counts(count: int, first: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + count, device=device)


def _mixed(z: Tensor) -> Tensor:
    """The mixing function of SplitMix64 (Steele, Lea & Flood 2014); products wrap around at 64 bits."""
    z = (z ^ _shifted(z, 30)) * -4658895280553007687
    z = (z ^ _shifted(z, 27)) * -7723592293110705685
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, places: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift repeats the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def seed_for(seed: int, *counters: int) -> int:
    """A seed for one step of one run: random draws then depend on the counters, not on what came before."""
    mixed = seed & 0xFFFFFFFFFFFFFFFF
    for counter in counters:  # splitmix64, so that neighbouring counters give unrelated streams
        mixed = (mixed + 0x9E3779B97F4A7C15 * (counter + 1)) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1  # torch takes 63 bits
