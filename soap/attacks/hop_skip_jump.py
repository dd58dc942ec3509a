"""HopSkipJump (Chen, Jordan & Wainwright 2020): a decision-based attack that uses labels alone, no logits or gradients.

It walks along the decision boundary. Each iteration estimates the boundary's normal from the labels of random points
around the present one, steps along it, and returns to the boundary by bisection towards the image.
"""

import math
from dataclasses import dataclass
from itertools import count

import torch

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, LabelQueries, Model
from soap.balls import BALLS, L2, Ball, per_sample, row_norms
from soap.descent import UNIT, Bounds, into_ball
from soap.shapes import Float, Tensor

FIRST_DIRECTIONS = 100
"""Random directions of the first iteration, B_0; iteration t uses B_0 sqrt(t)."""

FIRST_RADIUS = 0.1
"""Length of the random directions of the first iteration, as a share of the range of the bounds."""

MAX_HALVINGS = 10
"""Step sizes that an iteration tries, each half of the one before; if none succeeds the point stays."""

START_SHARE = 0.25
"""Share of the queries that may be spent on a first adversarial point."""


@dataclass(frozen=True, kw_only=True, repr=False)
class HopSkipJump(Attack):
    """Search for the nearest adversarial point by at most `queries` labels per sample, that of the image included.

    - `eps`: radius of the result. A sample leaves at its first adversarial point inside the ball and keeps it. If there
      is none, the result is the nearest adversarial point projected onto the ball: a valid input close to the decision
      boundary, although most likely no success. With None, the result is the nearest adversarial point itself.
    - `norm`: "linf" or "l2", the norm that is minimised.

    The first adversarial point is the inverted image or an image of uniform noise; a sample for which none is found
    stays unchanged. Random numbers are drawn from `seed` and the sample's own values (`soap._runtime.seeding`), so
    samples do not depend on each other.
    """

    eps: float | None
    norm: str = "linf"
    queries: int = 1000
    seed: int = 0
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        if self.eps is not None:
            validate.non_negative("eps", self.eps)
        validate.choice("norm", self.norm, ("linf", "l2"))
        validate.at_least("queries", self.queries, 1)
        validate.at_least("seed", self.seed, 0)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Walk along the boundary; every sample keeps its nearest adversarial point."""
        ask = LabelQueries(self, model, y, self.queries)
        rows = torch.arange(len(x), device=x.device)
        rows = rows[~ask(rows, x)]
        nearest, stream = x.clone(), streams(x, self.seed)
        rows, point = self._starts(ask, rows, x[rows], stream[rows])
        point = self._to_boundary(ask, rows, x[rows], point)
        nearest[rows] = point
        reserve, used = MAX_HALVINGS + self._bisections(x), 0  # what an iteration may spend after its directions
        for t in count(1):
            distance = self._size(point - x[rows])
            going = ask.left[rows] > reserve
            if self.eps is not None:
                going &= self._size(nearest[rows] - x[rows]) > self.eps
            keep = going.nonzero()[:, 0]
            if len(keep) == 0:
                break
            rows, point, distance = rows[keep], point[keep], distance[keep]
            origin = x[rows]
            wanted = int(FIRST_DIRECTIONS * math.sqrt(t))
            spare = ask.left[rows] - reserve
            # The last iteration uses what is left, if that is too little for another one.
            directions = torch.where(spare < 1.5 * wanted + reserve, spare, wanted)
            radius = self._radius(distance, t, x)
            normal = self._normal(ask, rows, point, directions, radius, stream[rows], used)
            used += int(directions.max())
            point = self._step(ask, rows, point, normal, distance / math.sqrt(t))
            point = self._to_boundary(ask, rows, origin, point)
            nearer = self._size(point - origin) < self._size(nearest[rows] - origin)
            nearest[rows] = torch.where(per_sample(nearer, point), point, nearest[rows])
        if self.eps is None:
            return nearest
        outside = per_sample(self._size(nearest - x) > self.eps, x)
        return torch.where(outside, self._towards(nearest, x, self.eps), nearest)

    def _starts(self, ask: LabelQueries, rows: Tensor, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples for which a first adversarial point was found, and that point."""
        low, high = self.bounds
        found, size = torch.zeros(len(rows), dtype=torch.bool, device=x.device), x.shape[1:].numel()
        point = x.clone()
        for k in range(min(max(int(START_SHARE * self.queries), 1), self.queries - 1)):
            rest = (~found).nonzero()[:, 0]
            if len(rest) == 0:
                break
            if k == 0:
                point[rest] = low + high - x[rest]
            else:
                noise = uniform(stream[rest], size, first=-k * size).to(x.dtype)  # before the numbers of directions
                point[rest] = low + (high - low) * noise.reshape(x[rest].shape)
            found[rest] = ask(rows[rest], point[rest])
        return rows[found], point[found]

    def _to_boundary(self, ask: LabelQueries, rows: Tensor, x: Tensor, point: Tensor) -> Tensor:
        """Return the adversarial point closest to the boundary on the way from `point` to the image, by bisection."""
        outside, inside = torch.zeros_like(self._size(point)), self._size(point - x)
        found = point
        for _ in range(self._bisections(x)):
            live = (ask.left[rows] > 0).nonzero()[:, 0]
            if len(live) == 0:
                break
            middle = (outside[live] + inside[live]) / 2
            tried = self._towards(point[live], x[live], middle)
            hits = ask(rows[live], tried)
            found = found.index_copy(0, live, torch.where(per_sample(hits, tried), tried, found[live]))
            inside[live] = torch.where(hits, middle, inside[live])
            outside[live] = torch.where(hits, outside[live], middle)
        return found

    def _normal(
        self,
        ask: LabelQueries,
        rows: Tensor,
        point: Tensor,
        directions: Tensor,
        radius: Tensor,
        stream: Tensor,
        used: int,
    ) -> Tensor:
        """Return the direction into the adversarial side, estimated from labels around `point` (equation 16)."""
        total, signed = torch.zeros_like(point), torch.zeros_like(point)  # sums of u_b and of phi_b u_b
        labels = point.new_zeros(len(point))  # sum of phi_b
        size, length = point.shape[1:].numel(), per_sample(radius, point)
        for b in range(int(directions.max())):
            live = (directions > b).nonzero()[:, 0]
            u = 2 * uniform(stream[live], size, first=(used + b) * size).to(point.dtype).reshape(point[live].shape) - 1
            u = L2(1.0).steepest(u if self.norm == "linf" else u.erfinv())
            around = (point[live] + length[live] * u).clamp(*self.bounds)
            u = (around - point[live]) / length[live]
            phi = torch.where(ask(rows[live], around), 1.0, -1.0).to(point.dtype)
            labels.index_add_(0, live, phi)
            total.index_add_(0, live, u)
            signed.index_add_(0, live, per_sample(phi, u) * u)
        mean = labels / directions
        baseline = torch.where(mean.abs() == 1, 0.0, mean)  # with equal labels their mean would cancel everything
        ball: Ball = BALLS[self.norm](1.0)
        return ball.steepest(signed - per_sample(baseline, total) * total)

    def _step(self, ask: LabelQueries, rows: Tensor, point: Tensor, normal: Tensor, length: Tensor) -> Tensor:
        """Step along `normal`, with a length that is halved until the point is adversarial."""
        found, rest = point.clone(), torch.arange(len(point), device=point.device)
        for halving in range(MAX_HALVINGS):
            step = per_sample(length[rest] / 2**halving, point)
            tried = (point[rest] + step * normal[rest]).clamp(*self.bounds)
            hits = ask(rows[rest], tried)
            found[rest] = torch.where(per_sample(hits, tried), tried, found[rest])
            rest = rest[~hits]
            if len(rest) == 0:
                break
        return found

    def _bisections(self, x: Tensor) -> int:
        """Return the number of bisections that reach the relative accuracy theta: d^-1.5 for Linf, d^-1 for L2."""
        return math.ceil((1.5 if self.norm == "linf" else 1.0) * math.log2(max(x.shape[1:].numel(), 2)))

    def _radius(self, distance: Tensor, t: int, x: Tensor) -> Tensor:
        """Return the length of random directions, delta_t: distance / sqrt(d), and a fixed one in the first iteration.

        The paper's is distance / d, with bisections sqrt(d) times as accurate. On the bundled CNN the longer one needs
        fewer bisections for the same norms; around a purifier it is less sensitive to rounding.
        """
        if t == 1:
            return torch.full_like(distance, FIRST_RADIUS * (self.bounds[1] - self.bounds[0]))
        return distance / math.sqrt(x.shape[1:].numel())

    def _size(self, delta: Float[Tensor, "rows *shape"]) -> Float[Tensor, "rows"]:
        return row_norms(delta) if self.norm == "l2" else delta.flatten(1).abs().amax(1)

    def _towards(self, point: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
        """Return the points projected onto the ball of `radius` around `x`."""
        return into_ball(point, x, BALLS[self.norm](radius), self.bounds)
