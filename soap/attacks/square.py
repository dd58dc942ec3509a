"""Square (Andriushchenko et al. 2020): a random search that uses logits only, no gradients.

It starts at vertical stripes of +-eps. Every further query repaints one square of the image, in each channel with +eps
or -eps, and keeps it if the loss rises. The squares become smaller during the search.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import LOSSES
from soap.balls import per_sample
from soap.descent import UNIT, Bounds
from soap.errors import InputError
from soap.shapes import Tensor

HALVING_QUERIES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries, of 10,000, after which the share of the image covered by a square is halved (the authors' code)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Square(Attack):
    """Random search in the Linf ball of radius `eps`, with at most `queries` forward passes per sample and restart.

    A sample leaves at its first success and keeps that point; otherwise it keeps its point of highest loss. Samples
    that are misclassified from the start cost one forward pass.

    - `p_init`: the share of the image that the first squares cover. It is halved on the authors' schedule for 10,000
      queries, stretched to `queries` as in their paper. (AutoAttack's standard suite does not stretch it.)
    - `norm`: "linf" only; the L2 version is a different search.

    Stripes, squares and signs are drawn from `seed` and the sample's own values (`soap._runtime.seeding`), so samples
    do not depend on each other.
    """

    eps: float
    queries: int = 5000
    norm: str = "linf"
    p_init: float = 0.8
    loss: str = "margin"
    restarts: int = 1
    seed: int = 0
    bounds: Bounds = UNIT

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.at_least("queries", self.queries, 1)
        if self.norm != "linf":
            raise InputError(f"norm is {self.norm!r}, but Square supports 'linf' only; use APGD for other norms.")
        if not 0 < self.p_init <= 1:
            raise InputError(f"p_init is {self.p_init!r}, expected a share above 0 and at most 1.")
        validate.choice("loss", self.loss, tuple(LOSSES))
        validate.at_least("restarts", self.restarts, 1)
        validate.at_least("seed", self.seed, 0)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Search for the samples that are classified correctly, then again for those without success."""
        if x.ndim != 4:
            raise InputError(
                f"got a batch of shape {list(x.shape)}, but Square needs images [batch, channels, height, width]."
            )
        logits = model(x)
        found, height = x.clone(), LOSSES[self.loss](logits, y).to(x.dtype)  # logits may have another precision
        rows = (logits.argmax(1) == y).nonzero()[:, 0]
        for restart in range(self.restarts):
            if len(rows) == 0:
                break
            points, losses, fools = self._search(model, x[rows], y[rows], restart)
            wins = fools | (losses > height[rows])
            found[rows] = torch.where(per_sample(wins, points), points, found[rows])
            height[rows] = torch.where(wins, losses, height[rows])
            rows = rows[~fools]
        return found

    def _search(self, model: Model, x: Tensor, y: Tensor, restart: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best point of every sample, its loss, and whether it is a success."""
        _, channels, height, width = x.shape
        row, stream = torch.arange(len(x), device=x.device), streams(x, self.seed, restart)
        low, high = (x - self.eps).clamp_min(self.bounds[0]), (x + self.eps).clamp_max(self.bounds[1])
        found, found_loss, fools = x.clone(), x.new_empty(len(x)), torch.zeros_like(y, dtype=torch.bool)
        best, best_loss = x, x.new_full((len(x),), -torch.inf)
        for query in range(self.queries):
            if query == 0:
                up = uniform(stream, channels * width).reshape(-1, channels, 1, width) < 0.5
                points = torch.where(up, high, low)
            else:
                draws = uniform(stream, channels + 2, first=channels * width + query * (channels + 2))
                inside = _square(draws[:, :2], self._side(query, height, width), height, width)
                points = torch.where(inside, torch.where(draws[:, 2:, None, None] < 0.5, high, low), best)
            logits = model(points)
            loss, wrong = LOSSES[self.loss](logits, y).to(x.dtype), logits.argmax(1) != y
            wins = wrong | (loss > best_loss)
            best, best_loss = torch.where(per_sample(wins, points), points, best), torch.where(wins, loss, best_loss)
            if query == self.queries - 1 or wrong.any():
                found[row], found_loss[row], fools[row] = best, best_loss, wrong
                keep = (~wrong).nonzero()[:, 0]
                if len(keep) == 0:
                    break
                row, stream, y, low, high, best, best_loss = (
                    tensor[keep] for tensor in (row, stream, y, low, high, best, best_loss)
                )
        return found, found_loss, fools

    def _side(self, query: int, height: int, width: int) -> int:
        """Return the side of a square in pixels; `query` counts from 1, after the stripes."""
        halvings = bisect_left(HALVING_QUERIES, (query - 1) * 10_000 // self.queries)
        side = round(math.sqrt(self.p_init / 2**halvings * height * width))
        return min(max(side, 1), height, width)


def _square(places: Tensor, side: int, height: int, width: int) -> Tensor:
    """Return a mask [batch, 1, height, width] of one square per sample, placed by `places` [batch, 2] in (0, 1)."""
    down = torch.arange(height, device=places.device) - (places[:, :1] * (height - side + 1)).floor()
    right = torch.arange(width, device=places.device) - (places[:, 1:] * (width - side + 1)).floor()
    inside = ((down >= 0) & (down < side))[:, :, None] & ((right >= 0) & (right < side))[:, None, :]
    return inside[:, None]
