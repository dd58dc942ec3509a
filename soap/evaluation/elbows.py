"""The elbow of a decreasing curve."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from soap.errors import InputError

FLAT_SHARE = 1e-9
"""Share of the whole decrease below which a difference is rounding."""


def elbow(x: Sequence[float], y: Sequence[float]) -> float:
    """The x at which the curve y(x) is furthest below its chord (Satopää et al. 2011), the smallest of several.

    x ascends. Where the curve rises again, its lowest value so far is used. The chord connects the first point with the
    last. Distances to it are vertical; with both axes scaled to [0, 1] their order is that of perpendicular distances.
    A curve that never falls has its elbow at the first x. A curve that is nowhere below its chord has it at the first x
    of its lowest value.
    """
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"got {len(x)} radii and {len(y)} losses; expected equal numbers, at least two.")
    if any(after <= before for before, after in pairwise(x)):
        raise InputError(f"got radii {tuple(x)}; expected ascending order.")
    lowest = list(accumulate(y, min))
    fall = lowest[0] - lowest[-1]
    if not fall > 0:
        return x[0]
    width = x[-1] - x[0]
    below = [(lowest[0] - low) / fall - (at - x[0]) / width for at, low in zip(x, lowest, strict=True)]
    most = max(below)
    if most <= FLAT_SHARE:
        return x[lowest.index(lowest[-1])]
    return next(at for at, depth in zip(x, below, strict=True) if depth >= most - FLAT_SHARE)
