"""Square (Andriushchenko et al. 2020): a random search that uses logits only, no gradients.

In Linf it starts at vertical stripes of +-eps. Every further query repaints one square of the image, in each channel
with +eps or -eps, and keeps it if the loss rises. The squares become smaller during the search. In L2 (Algorithm 3) a
perturbation of fixed norm is best concentrated in few places. A query adds a peaked pattern to one window of the
perturbation, sets a second window to zero, and gives its norm to the first.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import torch

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, Model, logits_of
from soap.attacks.losses import LOSSES, objective
from soap.balls import L2, per_sample
from soap.descent import UNIT, Bounds
from soap.errors import InputError
from soap.shapes import Float, Tensor

HALVING_QUERIES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries, of 10,000, after which the share of the image covered by a square is halved (the authors' code)."""

TILES = 5
"""Patterns of the first L2 perturbation, along the shorter side of the image."""

QUERIES_BETWEEN_EXITS = 25
"""Queries after which the tensors of samples with success are dropped; they are not evaluated before that either."""

WINDOW_DRAWS = 5
"""Random numbers of an L2 proposal besides the signs of its channels: places of two windows, and a transposition."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Square(Attack):
    """Random search in the ball of radius `eps`, with at most `queries` forward passes per sample and restart.

    A sample leaves at its first success and keeps that point; otherwise it keeps its point of highest loss. Samples
    that are misclassified from the start cost one forward pass. A query that repaints a square in the colours that it
    has already, as half of the single pixels of a grey image, costs none.

    - `p_init`: the share of the image that the first squares cover. It is halved on the authors' schedule for 10,000
      queries, stretched to `queries` as in their paper. (AutoAttack's standard suite does not stretch it.)
    - `norm`: "linf" or "l2".

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
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.at_least("queries", self.queries, 1)
        validate.choice("norm", self.norm, ("linf", "l2"))
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
        logits, loss = logits_of(model, x), objective(self.loss, self.targeted)
        found, height = x.clone(), loss(logits, y).to(x.dtype)  # logits may have another precision
        rows = (~self.succeeds(logits, y)).nonzero()[:, 0]
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
        loss = objective(self.loss, self.targeted)
        row, stream = torch.arange(len(x), device=x.device), streams(x, self.seed, restart)
        found, found_loss = x.clone(), x.new_full((len(x),), -torch.inf)
        found_fools = torch.zeros_like(y, dtype=torch.bool)
        best, best_loss, fools = found.clone(), found_loss.clone(), found_fools.clone()
        for query in range(self.queries):
            points, changed = self._propose(query, stream, x, best)
            live = (changed & ~fools).nonzero()[:, 0]
            if len(live):
                tried = points if len(live) == len(points) else points[live]
                logits = logits_of(model, tried)
                losses, wrong = loss(logits, y[live]).to(x.dtype), self.succeeds(logits, y[live])
                better = wrong | (losses > best_loss[live])
                wins = torch.zeros_like(fools).index_put((live,), better)
                best = torch.where(per_sample(wins, points), points, best)
                best_loss[live] = torch.where(better, losses, best_loss[live])
                fools[live] = wrong
            if len(live) == 0 or (query + 1) % QUERIES_BETWEEN_EXITS == 0:
                found[row], found_loss[row], found_fools[row] = best, best_loss, fools
                keep = (~fools).nonzero()[:, 0]
                state = (row, stream, x, y, best, best_loss, fools)
                row, stream, x, y, best, best_loss, fools = (t[keep] for t in state)
                if len(keep) == 0:
                    break
        found[row], found_loss[row], found_fools[row] = best, best_loss, fools
        return found, found_loss, found_fools

    def _propose(self, query: int, stream: Tensor, x: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points of query number `query`, from 0, and which of them differ from `best`."""
        if self.norm == "l2":
            return self._propose_l2(query, stream, x, best), torch.ones_like(stream, dtype=torch.bool)
        return self._propose_linf(query, stream, x, best)

    def _propose_linf(self, query: int, stream: Tensor, x: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Return stripes, or `best` with a square repainted."""
        batch, channels, height, width = x.shape
        if query == 0:
            up = uniform(stream, channels * width).reshape(-1, channels, 1, width) < 0.5
            return self._painted(x, up), torch.ones_like(stream, dtype=torch.bool)
        draws = uniform(stream, channels + 2, first=channels * width + query * (channels + 2))
        side = self._side(query, height, width)
        pixels = _square(draws[:, :2], side, x, (height - side + 1, width - side + 1)).expand(batch, channels, -1)
        colours = self._painted(x.flatten(2).gather(2, pixels), draws[:, 2:, None] < 0.5)
        flat = best.flatten(2)
        # A square that has its colours already leaves the image as it is.
        changed = (flat.gather(2, pixels) != colours).flatten(1).any(1)
        return flat.scatter(2, pixels, colours).reshape(x.shape), changed

    def _painted(self, x: Tensor, up: Tensor) -> Tensor:
        """Return x + eps where `up`, else x - eps, inside the bounds."""
        return torch.where(up, x + self.eps, x - self.eps).clamp(*self.bounds)

    def _propose_l2(self, query: int, stream: Tensor, x: Tensor, best: Tensor) -> Tensor:
        """Return a grid of patterns, or `best` with two windows changed."""
        _, channels, height, width = x.shape
        rows, columns, _ = tile_count(height, width)
        start, each = rows * columns * (channels + 1), channels + WINDOW_DRAWS
        if query == 0:
            delta = pattern_grid(uniform(stream, start), x, self.eps)
        else:
            side = max(self._side(query, height, width), 3)
            side = min(side + (side + 1) % 2, height, width)  # odd: a pattern has a centre
            delta = changed_windows(uniform(stream, each, first=start + query * each), best - x, side, self.eps)
        return (x + delta).clamp(*self.bounds)

    def _side(self, query: int, height: int, width: int) -> int:
        """Return the side of a square in pixels; `query` counts from 1, after the stripes."""
        halvings = bisect_left(HALVING_QUERIES, (query - 1) * 10_000 // self.queries)
        side = round(math.sqrt(self.p_init / 2**halvings * height * width))
        return min(max(side, 1), height, width)


@lru_cache(maxsize=64)
def pattern(side: int) -> Float[Tensor, "side side"]:
    """Return eta, of norm 1: a positive peak above a negative one of equal norm, which fall off as sums of 1 / k^2."""
    upper = side // 2
    halves = torch.cat([_peak(upper, side), -_peak(side - upper, side)])
    eta: Tensor = halves / torch.linalg.vector_norm(halves)
    return eta


def tile_count(height: int, width: int) -> tuple[int, int, int]:
    """Return the rows and columns of patterns in the first perturbation, and the side of one."""
    side = max(min(height, width) // TILES, 1)
    return height // side, width // side, side


def pattern_grid(
    draws: Float[Tensor, "batch draws"], like: Float[Tensor, "batch channels height width"], eps: float
) -> Float[Tensor, "batch channels height width"]:
    """Return patterns in a grid, with random signs and transpositions, together of norm `eps`.

    draws: for each tile one number for every channel and one more.
    """
    batch, channels, height, width = like.shape
    rows, columns, side = tile_count(height, width)
    up = draws.reshape(batch, channels + 1, rows, columns).repeat_interleave(side, 2).repeat_interleave(side, 3) < 0.5
    eta = pattern(side).to(like)
    tiles = torch.where(up[:, :1], eta.repeat(rows, columns), eta.T.repeat(rows, columns))
    delta = torch.zeros_like(like)
    top, left = (height - rows * side) // 2, (width - columns * side) // 2
    delta[:, :, top : top + rows * side, left : left + columns * side] = torch.where(up[:, 1:], tiles, -tiles)
    return eps * L2(eps).steepest(delta)


def changed_windows(
    draws: Float[Tensor, "batch draws"], delta: Float[Tensor, "batch channels height width"], side: int, eps: float
) -> Float[Tensor, "batch channels height width"]:
    """Return perturbations of norm `eps` with a new pattern in one window and zeros in another.

    draws: `WINDOW_DRAWS` numbers and one for each channel.
    """
    batch, channels, height, width = delta.shape
    # The authors' code leaves out the last row and column, too. On digits, whose border is empty, that saves queries.
    places = max(height - side, 1), max(width - side, 1)
    one, other = (
        _square(draws[:, first : first + 2], side, delta, places).expand(batch, channels, -1) for first in (0, 2)
    )
    flat = delta.flatten(2)
    window, outside = flat.gather(2, one), flat.scatter(2, one, 0.0)
    emptied = outside.gather(2, other)
    eta = pattern(side).to(delta)
    placed = torch.where(draws[:, 4, None] < 0.5, eta.T.flatten(), eta.flatten())[:, None]
    signs = torch.where(draws[:, WINDOW_DRAWS:, None] < 0.5, 1.0, -1.0).to(delta.dtype)
    added = signs * placed + window / _norms(window)
    unused = (eps**2 - flat.square().sum((1, 2))).clamp_min(0)[:, None, None]
    norm = (unused / channels + torch.cat([window, emptied], 2).square().sum(2, keepdim=True)).sqrt()
    changed = outside.scatter_(2, other, 0.0).scatter_(2, one, norm * added / _norms(added))
    return eps * L2(eps).steepest(changed.reshape(delta.shape))


def _peak(height: int, width: int) -> Tensor:
    """Return nested rectangles around the centre, the k-th of height 1 / k^2, scaled to norm 1."""
    down, right = ((torch.arange(length, dtype=torch.float64) - length // 2)[:, None] for length in (height, width))
    out = torch.zeros(height, width, dtype=torch.float64)
    for k in range(max(height, width) // 2 + 1):
        out += ((down.abs() <= k) & (right.abs() <= k).T) / (k + 1) ** 2
    peak: Tensor = out / torch.linalg.vector_norm(out).clamp_min(1e-12)
    return peak  # the upper half of a pattern of side 1 is empty


def _square(draws: Float[Tensor, "batch 2"], side: int, images: Tensor, places: tuple[int, int]) -> Tensor:
    """Return the pixels of one square in every image, as numbers from 0 row by row, [batch, 1, side * side].

    draws: which of the `places` the square has along each axis.
    """
    top, left = ((draws[:, [axis]] * places[axis]).floor().long() for axis in (0, 1))
    along = torch.arange(side, device=images.device)
    return ((top + along)[:, :, None] * images.shape[3] + (left + along)[:, None, :]).flatten(1)[:, None]


def _norms(windows: Float[Tensor, "batch channels pixels"]) -> Tensor:
    """Return the L2 norm of every channel, at least 1e-12."""
    norms: Tensor = torch.linalg.vector_norm(windows, dim=2, keepdim=True)
    return norms.clamp_min(1e-12)
