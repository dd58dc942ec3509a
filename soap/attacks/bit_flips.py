"""BitFlips: greedy search over the purified images of a defence that rounds pixels.

Behind rounding only the pixels within eps of the threshold matter: each of them is black or white, as the attacker
wants, and all others are fixed. The search tries to flip each of these pixels alone, keeps the flip that raises the
margin most, and starts over, until the sample is misclassified or no single flip raises the margin.
"""

from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import margin
from soap.descent import UNIT, Bounds
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor

POINTS_PER_PASS = 2000
"""Limit of the candidates in one forward pass."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BitFlips(Attack):
    """Search the Linf ball of radius `eps` by moving single values across `threshold`, with at most `flips` flips.

    A value can be flipped if `threshold` lies strictly inside its interval [x - eps, x + eps]; it then moves to an end
    of the interval. A flip costs one forward pass for each such value. start: an attack whose result is searched as
    well; None to search from the input alone. No gradients are used except by `start`.
    """

    eps: float
    flips: int = 100
    threshold: float = 0.5
    start: Attack | None = None
    bounds: Bounds = UNIT

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.at_least("flips", self.flips, 1)
        if not self.bounds[0] < self.threshold < self.bounds[1]:
            raise InputError(f"threshold is {self.threshold}, expected a value inside the bounds {self.bounds}.")

    def perturb(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """Search from the result of `start`, and then from the input for the samples that it did not break."""
        found, height = self._search(model, x, x if self.start is None else self.start.perturb(model, x, y), y)
        rows = (height <= 0).nonzero()[:, 0]
        if self.start is None or len(rows) == 0:
            return found
        again, second = self._search(model, x[rows], x[rows], y[rows])
        better = second > height[rows]
        found[rows[better]] = again[better]
        return found

    def _search(self, model: Model, x: Tensor, begin: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best point found from `begin` and its margin."""
        low = (x - self.eps).clamp_min(self.bounds[0]).flatten(1)
        high = (x + self.eps).clamp_max(self.bounds[1]).flatten(1)
        undecided = (low < self.threshold) & (high > self.threshold)
        point, height = begin.flatten(1).clone(), margin(model(begin), y)
        rows = ((height <= 0) & undecided.any(1)).nonzero()[:, 0]
        for _ in range(self.flips):
            if len(rows) == 0:
                break
            flipped = torch.where(point > self.threshold, low, high)
            heights = self._single_flips(model, point, flipped, undecided, y, rows, x.shape[1:])
            best, pixel = heights.max(1)
            rows, best, pixel = (t[best > height[rows]] for t in (rows, best, pixel))
            point[rows, pixel], height[rows] = flipped[rows, pixel], best
            rows = rows[best <= 0]
        return point.view_as(x), height

    def _single_flips(
        self,
        model: Model,
        point: Tensor,
        flipped: Tensor,
        undecided: Tensor,
        y: Tensor,
        rows: Tensor,
        shape: torch.Size,
    ) -> Tensor:
        """Return the margin after each single flip, [rows, values]; -inf where a value cannot be flipped."""
        heights = point.new_full((len(rows), point.shape[1]), -torch.inf)
        for pairs in torch.split(undecided[rows].nonzero(), POINTS_PER_PASS):
            which, pixel = pairs.unbind(1)
            row = rows[which]
            candidates = point[row].scatter(1, pixel[:, None], flipped[row, pixel][:, None])
            heights[which, pixel] = margin(model(candidates.view(-1, *shape)), y[row]).to(heights.dtype)
        return heights
