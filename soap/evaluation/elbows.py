"""Where a falling curve bends."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from soap.errors import InputError

FLAT = 1e-9
"""A share of the whole fall; what is less is rounding."""


def elbow(x: Sequence[float], y: Sequence[float]) -> float:
    """The x at which the curve y(x) lies furthest below its chord (Satopää et al. 2011), the smallest of several.

    x ascends. Where the curve rises again, its lowest value so far counts. The chord leads from the first point to the
    last; distances to it are compared vertically, which with both axes scaled to [0, 1] gives the same order as
    perpendicularly. A curve that never falls bends at its first x; one that nowhere lies below its chord, and so
    falls to the very end, at the first x where it is lowest.
    """
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"got {len(x)} radii and {len(y)} losses, want as many of one as of the other, two at least.")
    if any(after <= before for before, after in pairwise(x)):
        raise InputError(f"radii are {tuple(x)}, want them in ascending order.")
    lowest = list(accumulate(y, min))
    fall = lowest[0] - lowest[-1]
    if not fall > 0:
        return x[0]
    width = x[-1] - x[0]
    below = [(lowest[0] - low) / fall - (at - x[0]) / width for at, low in zip(x, lowest, strict=True)]
    most = max(below)
    if most <= FLAT:
        return x[lowest.index(lowest[-1])]
    return next(at for at, depth in zip(x, below, strict=True) if depth >= most - FLAT)
