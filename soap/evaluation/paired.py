"""Statistics of two results on the same images: the difference of accuracies with its interval, and McNemar's test."""

import math

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]
Images = npt.NDArray[np.float64]


def paired_difference(one: Mask, other: Mask) -> tuple[float, float, float]:
    """Share of `one` less that of `other` on the same images, with a 95 % interval (Bonett & Price 2012)."""
    n, only_one, only_other = len(one), int((one & ~other).sum()), int((other & ~one).sum())
    up, down = (only_one + 1) / (n + 2), (only_other + 1) / (n + 2)
    half = 1.959964 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return (only_one - only_other) / n, max(-1.0, up - down - half), min(1.0, up - down + half)


def paired_gain(values: Images, other: Images | Mask) -> tuple[float, float, float]:
    """The mean of `values` in [0, 1] less that of `other`, with a 95 % interval.

    Zeros and ones have Bonett and Price's interval; values between, those of a random defence, a normal one.
    """
    if all(((each == 0) | (each == 1)).all() for each in (values, other)):
        return paired_difference(values == 1, other == 1)
    difference = values - other
    mean, half = float(difference.mean()), 1.959964 * float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return mean, max(-1.0, mean - half), min(1.0, mean + half)


def mcnemar_p_value(only_a: int, only_b: int) -> float:
    """The two-sided p value of McNemar's exact test: twice a tail of the binomial distribution with p = 1/2."""
    discordant = only_a + only_b
    tail = term = 1
    for k in range(min(only_a, only_b)):
        term = term * (discordant - k) // (k + 1)  # the binomial coefficient of k + 1, as an integer
        tail += term
    return min(1.0, 2 * tail / (1 << discordant))
