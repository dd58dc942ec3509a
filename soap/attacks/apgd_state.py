"""One walk of Auto-PGD: what belongs to each row, and the rules of Algorithm 1 (Croce & Hein 2020) on it."""

from dataclasses import dataclass, fields

import torch

from soap._runtime.seeding import uniform
from soap.attacks.min_norm import per_row
from soap.balls import L2, Ball
from soap.shapes import Int, Tensor

MOMENTUM = 0.75
"""alpha of the paper: the share of a new step in the move; the rest repeats the last move."""


@dataclass(kw_only=True)
class Found:
    """What is kept of rows when their walk is over; every field is [rows, ...]."""

    found: Tensor
    height: Tensor  # loss at `found`
    fooled_at: Tensor  # the first step that fooled, or -1
    x: Tensor  # the last point
    curve: Tensor  # [rows, steps + 1], NaN where the walk has not been

    @classmethod
    def nothing(cls, x: Tensor, steps: int) -> "Found":
        """Every row at its own image, lower than any point."""
        return cls(
            found=x.clone(),
            height=x.new_full((len(x),), -torch.inf),
            fooled_at=torch.full((len(x),), -1, device=x.device),
            x=x.clone(),
            curve=x.new_full((len(x), steps + 1), torch.nan),
        )

    def improve(self, rows: Tensor, other: "Found") -> None:
        """Take over at `rows` what is better in `other`."""
        wins = better(other.fooled_at >= 0, other.height, than_fools=self.fooled_at[rows] >= 0, than=self.height[rows])
        for part in fields(Found):
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            taken = wins.reshape(-1, *[1] * (theirs.ndim - 1))
            mine[rows] = torch.where(taken, theirs, mine[rows])


@dataclass(kw_only=True)
class Walk(Found):
    """All that belongs to the rows still in the batch."""

    row: Tensor
    origin: Tensor
    low: Tensor  # the box of radius eps around `origin`, inside [0, 1]; balls of either norm lie in it
    high: Tensor
    y: Tensor
    target: Tensor
    step_size: Tensor
    previous: Tensor
    gradient: Tensor
    loss: Tensor  # at `x`
    top: Tensor  # the point of highest loss; unlike `found` it need not fool
    top_gradient: Tensor
    top_loss: Tensor
    rises: Tensor  # steps that raised the loss since the last checkpoint
    checked: Tensor  # `top_loss` at the last checkpoint
    halved: Tensor  # whether the step was halved there

    @classmethod
    def at(cls, x: Tensor, y: Tensor, target: Tensor, *, eps: float, steps: int) -> "Walk":
        """Every row at its own image, which has not been looked at."""
        lowest = x.new_full((len(x),), -torch.inf)
        return cls(
            **vars(Found.nothing(x, steps)),
            row=torch.arange(len(x), device=x.device),
            origin=x,
            low=(x - eps).clamp_min(0),
            high=(x + eps).clamp_max(1),
            y=y,
            target=target,
            step_size=torch.full_like(lowest, 2 * eps),
            previous=x,
            gradient=torch.zeros_like(x),
            loss=-lowest,  # the start is no rise
            top=x,
            top_gradient=torch.zeros_like(x),
            top_loss=lowest,
            rises=torch.zeros_like(y),
            checked=lowest,
            halved=torch.zeros_like(y, dtype=torch.bool),
        )

    def only(self, keep: Tensor) -> "Walk":
        """The rows to keep, in a batch of their own."""
        return Walk(**{part.name: getattr(self, part.name)[keep] for part in fields(self)})

    def start(self, stream: Int[Tensor, "rows"], ball: Ball) -> None:
        """Go to a random point on the surface of the ball, clipped to [0, 1]."""
        noise = 2 * uniform(stream, self.x[0].numel()).to(self.x.dtype).reshape(self.x.shape) - 1
        if isinstance(ball, L2):
            direction = ball.steepest(noise.erfinv())  # a uniform number's quantile: normal, but for its scale
        else:
            direction = noise / per_row(noise.flatten(1).abs().amax(1), noise)
        self.x = self.previous = self._legal(self.origin + ball.eps * direction, ball)

    def move(self, ball: Ball, *, first: bool) -> None:
        """One projected step along the gradient, with momentum but for the first."""
        x = self.x
        z = self._legal(torch.addcmul(x, per_row(self.step_size, x), ball.steepest(self.gradient)), ball)
        if not first:  # x + alpha (z - x) + (1 - alpha) (x - previous)
            z = self._legal(torch.lerp(x, z, MOMENTUM).add(x - self.previous, alpha=1 - MOMENTUM), ball)
        self.x, self.previous = z, x

    def see(self, logits: Tensor, gradient: Tensor, loss: Tensor, *, step: int) -> None:
        """Take in what a look at `x` showed."""
        loss = loss.to(self.x.dtype)  # logits may be of another precision
        # A gradient that is not finite would lead out of the images; such a coordinate stays where it is.
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        self.curve[:, step] = loss
        self.rises = self.rises + (loss > self.loss)
        self.loss, self.gradient = loss, gradient
        higher = loss > self.top_loss
        self.top = torch.where(per_row(higher, self.x), self.x, self.top)
        self.top_gradient = torch.where(per_row(higher, gradient), gradient, self.top_gradient)
        self.top_loss = torch.where(higher, loss, self.top_loss)
        self.keep(self.x, logits, loss, step=step)

    def keep(self, point: Tensor, logits: Tensor, loss: Tensor, *, step: int) -> None:
        """Keep `point` where it is better than what its row has found."""
        loss = loss.to(self.x.dtype)
        fools = logits.argmax(1) != self.y
        wins = better(fools, loss, than_fools=self.fooled_at >= 0, than=self.height)
        self.found = torch.where(per_row(wins, point), point, self.found)
        self.height = torch.where(wins, loss, self.height)
        self.fooled_at = torch.where(fools & (self.fooled_at < 0), step, self.fooled_at)

    def forget(self, rows: Tensor) -> None:
        """Give up what these rows have found."""
        self.found[rows], self.height[rows], self.fooled_at[rows] = self.origin[rows], -torch.inf, -1

    def adapt(self, few: float) -> None:
        """At a checkpoint: halve the step and go back to the top where the walk no longer climbs."""
        oscillates = self.rises <= few  # condition 1, with the authors' code's `at most` for the paper's `less than`
        stalls = ~self.halved & (self.top_loss == self.checked)  # condition 2; at the first checkpoint there is none
        back = oscillates | stalls
        self.step_size = torch.where(back, self.step_size / 2, self.step_size)
        self.x = torch.where(per_row(back, self.x), self.top, self.x)
        self.gradient = torch.where(per_row(back, self.gradient), self.top_gradient, self.gradient)
        self.loss = torch.where(back, self.top_loss, self.loss)
        self.halved, self.checked, self.rises = back, self.top_loss, torch.zeros_like(self.rises)

    def _legal(self, point: Tensor, ball: Ball) -> Tensor:
        """Project onto the ball, then onto the images; in Linf the box is both."""
        if isinstance(ball, L2):
            point = self.origin + ball.project(point - self.origin)
        return point.clamp(self.low, self.high)


def better(fools: Tensor, loss: Tensor, *, than_fools: Tensor, than: Tensor) -> Tensor:
    """Whether a point is to be preferred: it fools where the other does not, else it has the higher loss."""
    return torch.where(fools == than_fools, loss > than, fools)


def checkpoints(steps: int) -> dict[int, int]:
    """The steps after which step sizes are looked at, each with its distance from the one before.

    The first distance is 22 % of all steps, each further one 3 % shorter, down to 6 %. Rounded down and at least 1, as
    in the authors' code: of few steps nearly all are checkpoints in the end, which finds more than the paper's rounding
    up does (at 100 steps they agree).
    """
    first, shorter, least = (max(steps * percent // 100, 1) for percent in (22, 3, 6))
    distances, here, distance = {}, first, first
    while here <= steps:
        distances[here] = distance
        distance = max(distance - shorter, least)
        here += distance
    return distances
