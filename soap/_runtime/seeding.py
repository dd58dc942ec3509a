"""Random numbers per sample, computed from a seed and the sample's own values.

A `torch.Generator` draws for the whole batch in order, so the numbers of a sample depend on the samples before it. Here
every sample has its own stream, keyed by its values: it receives the same numbers alone, in any batch, on any device
and in a resumed run. No state is kept between calls and no random generator is used.
"""

import torch

from soap.shapes import Float, Int, Tensor

SPLITMIX64_INCREMENT = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed 64-bit integer."""


def streams(x: Float[Tensor, "batch *shape"], *salts: int) -> Int[Tensor, "batch"]:
    """Return one stream key per sample, a hash of its values (in single precision) and of `salts`, such as a seed."""
    bits = x.flatten(1).float().contiguous().view(torch.int32).long()
    weights = _mixed(_counters(bits.shape[1], 1, x.device) * SPLITMIX64_INCREMENT)
    keys = _mixed((bits * weights).sum(1))  # integers: the order of summation does not matter
    for salt in salts:
        keys = _mixed(keys + salt)
    return keys


def uniform(stream: Int[Tensor, "batch"], count: int, first: int = 0) -> Float[Tensor, "batch count"]:
    """Return numbers `first` to `first + count` of every stream, uniform in the open interval (0, 1), as float32."""
    mixed = _mixed(stream[:, None] + _counters(count, first + 1, stream.device) * SPLITMIX64_INCREMENT)
    return (_shifted(mixed, 41) + 0.5) * 2**-23  # 23 bits and a half: exact in single precision, never 0 or 1


def _counters(count: int, first: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + count, device=device)


def _mixed(z: Tensor) -> Tensor:
    """Apply the mixing function of SplitMix64 (Steele, Lea & Flood 2014); products wrap around at 64 bits."""
    z = (z ^ _shifted(z, 30)) * -4658895280553007687
    z = (z ^ _shifted(z, 27)) * -7723592293110705685
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, places: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift repeats the sign bit."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def seed_for(seed: int, *counters: int) -> int:
    """Return a seed for one step of one run, so that its random draws depend on the counters, not on earlier draws."""
    mixed = seed & 0xFFFFFFFFFFFFFFFF
    for counter in counters:  # SplitMix64: neighbouring counters give unrelated seeds
        mixed = (mixed + 0x9E3779B97F4A7C15 * (counter + 1)) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1  # torch takes 63 bits
