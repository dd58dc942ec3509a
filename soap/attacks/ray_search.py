"""RayS (Chen & Gu 2020): a decision-based Linf attack that searches for the sign vector with the nearest boundary.

The perturbation is r times a vector of signs. The search flips the signs of one block after another, each time in half
as large blocks. It keeps a flip if the point at the present radius is still adversarial, and then bisects the radius.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, LabelQueries, Model
from soap.balls import per_sample
from soap.descent import UNIT, Bounds
from soap.shapes import Tensor

TOLERANCE = 1e-3
"""Accuracy of a radius, as a share of the range of the bounds (the authors' code)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RayS(Attack):
    """Search for the nearest adversarial point in Linf by at most `queries` labels per sample, that of `x` included.

    eps: radius of the result. A sample leaves at its first adversarial point inside the ball and keeps it. If there is
    none, the result is the nearest adversarial point projected onto the ball: a valid input close to the decision
    boundary, although most likely no success. With None, the result is the nearest adversarial point itself.

    The first signs are all +1. A sample for which no adversarial point is found stays unchanged; with a target class
    and many classes that is common. Nothing is random.
    """

    eps: float | None
    queries: int = 1000
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        if self.eps is not None:
            validate.non_negative("eps", self.eps)
        validate.at_least("queries", self.queries, 1)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Flip blocks of signs; every sample keeps the signs of smallest radius."""
        ask = LabelQueries(self, model, y, self.queries)
        rows = torch.arange(len(x), device=x.device)
        rows = rows[~ask(rows, x)]
        signs = torch.ones(len(x), x.shape[1:].numel(), dtype=x.dtype, device=x.device)
        radius = x.new_full((len(x),), self.bounds[1] - self.bounds[0])  # every point of the box is inside
        found = torch.zeros_like(y, dtype=torch.bool)
        goal = 0.0 if self.eps is None else self.eps
        for block in _blocks(signs.shape[1]):
            rows = rows[(ask.left[rows] > 0) & ~(found[rows] & (radius[rows] <= goal))]
            if len(rows) == 0:
                break
            tried = signs[rows]
            tried[:, block] *= -1
            hits = ask(rows, self._point(x[rows], tried, radius[rows])).nonzero()[:, 0]
            if len(hits):
                better, tried = rows[hits], tried[hits]
                signs[better], found[better] = tried, True
                radius[better] = self._bisected(ask, better, x[better], tried, radius[better], goal)
        nearest = self._point(x, signs, radius if self.eps is None else radius.clamp_max(self.eps))
        return torch.where(per_sample(found, x), nearest, x)

    def _bisected(
        self, ask: LabelQueries, rows: Tensor, x: Tensor, signs: Tensor, radius: Tensor, goal: float
    ) -> Tensor:
        """Return the smallest adversarial radius along `signs`, given one; the first that is tried is `goal`."""
        inside, outside = radius.clone(), torch.zeros_like(radius)
        tolerance = TOLERANCE * (self.bounds[1] - self.bounds[0])
        while True:
            wide = (inside - outside > tolerance) & ((inside > goal) | (goal == 0))
            live = (wide & (ask.left[rows] > 0)).nonzero()[:, 0]
            if len(live) == 0:
                return inside
            low, high = outside[live], inside[live]
            middle = torch.where((low < goal) & (goal < high), goal, (low + high) / 2)
            hits = ask(rows[live], self._point(x[live], signs[live], middle))
            inside[live] = torch.where(hits, middle, high)
            outside[live] = torch.where(hits, low, middle)

    def _point(self, x: Tensor, signs: Tensor, radius: Tensor) -> Tensor:
        return (x + per_sample(radius, x) * signs.reshape(x.shape)).clamp(*self.bounds)


def _blocks(size: int) -> Iterator[slice]:
    """Yield the blocks whose signs are flipped: first none, then all, both halves, all quarters, ..., single values.

    It then goes on with single values, without end.
    """
    yield slice(0, 0)
    level = 0
    while True:
        length = max(math.ceil(size / 2**level), 1)
        for first in range(0, size, length):
            yield slice(first, first + length)
        level += 1
