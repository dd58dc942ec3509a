"""State of one run of Auto-PGD: Algorithm 1 of Croce & Hein (2020), and its variant for the L1 ball."""

from dataclasses import dataclass, fields

import torch

from soap._runtime.seeding import uniform
from soap.balls import L1, L2, Ball, per_sample, sparse_sign
from soap.descent import Bounds
from soap.shapes import Float, Int, Tensor

MOMENTUM = 0.75
"""alpha of the paper: the weight of the new step; the rest repeats the last move."""


FIRST_SHARE = 0.2
"""Share of the coordinates that the first steps change."""

SHRINK = 1.5
"""Factor between the coordinates in which the best point differs and those of a step; also that of the step sizes."""

SPARSER = 0.95
"""A best point has become sparser if its number of changed coordinates fell below this share."""

SMALLEST_STEP = 0.1
"""As a share of eps."""

CHECK_SHARE = 0.04
"""Distance of the checkpoints as a share of all steps."""

ROUNDING = 1 - 1e-6
"""Factor of perturbations: rounding errors of the sum over all coordinates must not exceed eps."""


@dataclass(kw_only=True)
class BestPoints:
    """The results of samples after a run; every field is [samples, ...]."""

    found: Tensor
    height: Tensor  # loss at `found`
    fooled_at: Tensor  # the first successful step, or -1
    x: Tensor  # the last point
    curve: Tensor  # [samples, steps + 1], NaN for steps not taken

    @classmethod
    def empty(cls, x: Tensor, steps: int) -> "BestPoints":
        """Return every sample at its own image, with loss -inf."""
        return cls(
            found=x.clone(),
            height=x.new_full((len(x),), -torch.inf),
            fooled_at=torch.full((len(x),), -1, device=x.device),
            x=x.clone(),
            curve=x.new_full((len(x), steps + 1), torch.nan),
        )

    def improve(self, rows: Tensor, other: "BestPoints") -> None:
        """Replace the results at `rows` by those of `other` where these are better."""
        wins = better(other.fooled_at >= 0, other.height, than_fools=self.fooled_at[rows] >= 0, than=self.height[rows])
        for part in fields(BestPoints):
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            mine[rows] = torch.where(per_sample(wins, theirs), theirs, mine[rows])


@dataclass(kw_only=True)
class APGDState(BestPoints):
    """State of the samples that are still in the batch."""

    row: Tensor
    origin: Tensor
    low: Tensor  # the box of radius eps around `origin` inside the bounds; balls of all norms are inside it
    high: Tensor
    y: Tensor
    target: Tensor
    step_size: Tensor
    previous: Tensor
    gradient: Tensor
    loss: Tensor  # at `x`
    top: Tensor  # the point of highest loss; unlike `found` it need not be adversarial
    top_gradient: Tensor
    top_loss: Tensor
    rises: Tensor  # steps that raised the loss since the last checkpoint
    checked: Tensor  # `top_loss` at the last checkpoint
    halved: Tensor  # whether the step was halved there

    @classmethod
    def at(cls, x: Tensor, y: Tensor, target: Tensor, *, eps: float, steps: int, bounds: Bounds) -> "APGDState":
        """Return the state of every sample at its own image, before any evaluation."""
        lowest = x.new_full((len(x),), -torch.inf)
        return cls(
            **vars(BestPoints.empty(x, steps)),
            row=torch.arange(len(x), device=x.device),
            origin=x,
            low=(x - eps).clamp_min(bounds[0]),
            high=(x + eps).clamp_max(bounds[1]),
            y=y,
            target=target,
            step_size=torch.full_like(lowest, 2 * eps),
            previous=x,
            gradient=torch.zeros_like(x),
            loss=-lowest,  # the start does not count as a rise
            top=x,
            top_gradient=torch.zeros_like(x),
            top_loss=lowest,
            rises=torch.zeros_like(y),
            checked=lowest,
            halved=torch.zeros_like(y, dtype=torch.bool),
        )

    def only(self, keep: Tensor) -> "APGDState":
        """Return the state of the samples to keep."""
        return type(self)(**{part.name: getattr(self, part.name)[keep] for part in fields(self)})

    def start(self, stream: Int[Tensor, "rows"], ball: Ball) -> None:
        """Move to a random point on the surface of the ball, clipped to the bounds."""
        noise = 2 * uniform(stream, self.x[0].numel()).to(self.x.dtype).reshape(self.x.shape) - 1
        if isinstance(ball, L2):
            direction = ball.steepest(noise.erfinv())  # erfinv of a uniform number is normal up to its scale
        else:
            direction = noise / per_sample(noise.flatten(1).abs().amax(1), noise)
        self.x = self.previous = self._project(self.origin + ball.eps * direction, ball)

    def move(self, ball: Ball, *, first: bool) -> None:
        """Take one projected step along the gradient, with momentum except in the first step."""
        x = self.x
        z = self._project(torch.addcmul(x, per_sample(self.step_size, x), ball.steepest(self.gradient)), ball)
        if not first:  # x + alpha (z - x) + (1 - alpha) (x - previous)
            z = self._project(torch.lerp(x, z, MOMENTUM).add(x - self.previous, alpha=1 - MOMENTUM), ball)
        self.x, self.previous = z, x

    def evaluated(self, fools: Tensor, gradient: Tensor, loss: Tensor, *, step: int) -> None:
        """Store success, gradient and loss at `x`."""
        loss = loss.to(self.x.dtype)  # logits may have another precision
        # NaN or infinite gradients would move points out of the bounds; such coordinates do not move.
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        self.curve[:, step] = loss
        self.rises = self.rises + (loss > self.loss)
        self.loss, self.gradient = loss, gradient
        higher = loss > self.top_loss
        self.top = torch.where(per_sample(higher, self.x), self.x, self.top)
        self.top_gradient = torch.where(per_sample(higher, gradient), gradient, self.top_gradient)
        self.top_loss = torch.where(higher, loss, self.top_loss)
        self.keep(self.x, fools, loss, step=step)

    def keep(self, point: Tensor, fools: Tensor, loss: Tensor, *, step: int) -> None:
        """Keep `point` where it is better than the sample's best point."""
        loss = loss.to(self.x.dtype)
        wins = better(fools, loss, than_fools=self.fooled_at >= 0, than=self.height)
        self.found = torch.where(per_sample(wins, point), point, self.found)
        self.height = torch.where(wins, loss, self.height)
        self.fooled_at = torch.where(fools & (self.fooled_at < 0), step, self.fooled_at)

    def discard(self, rows: Tensor) -> None:
        """Discard the best points of these samples."""
        self.found[rows], self.height[rows], self.fooled_at[rows] = self.origin[rows], -torch.inf, -1

    def adapt(self, few: float) -> None:
        """At a checkpoint, halve the step and return to the best point where the loss no longer rises."""
        oscillates = (
            self.rises <= few
        )  # condition 1, with `at most` as in the authors' code, not the paper's `less than`
        stalls = ~self.halved & (self.top_loss == self.checked)  # condition 2; never true at the first checkpoint
        back = oscillates | stalls
        self.step_size = torch.where(back, self.step_size / 2, self.step_size)
        self.return_to_top(back)
        self.halved, self.checked, self.rises = back, self.top_loss, torch.zeros_like(self.rises)

    def return_to_top(self, back: Tensor) -> None:
        """Return to the point of highest loss where `back` is true."""
        self.x = torch.where(per_sample(back, self.x), self.top, self.x)
        self.gradient = torch.where(per_sample(back, self.gradient), self.top_gradient, self.gradient)
        self.loss = torch.where(back, self.top_loss, self.loss)

    def _project(self, point: Tensor, ball: Ball) -> Tensor:
        """Project onto the ball, then onto the bounds; for Linf the box is both."""
        if isinstance(ball, L2):
            point = self.origin + ball.project(point - self.origin)
        return point.clamp(self.low, self.high)


def better(fools: Tensor, loss: Tensor, *, than_fools: Tensor, than: Tensor) -> Tensor:
    """Return where a point is preferred: it is adversarial and the other is not, or else its loss is higher."""
    return torch.where(fools == than_fools, loss > than, fools)


def checkpoints(steps: int) -> dict[int, int]:
    """Return the steps after which step sizes are adapted, each with its distance from the previous one.

    The first distance is 22 % of all steps, each further one 3 % shorter, down to 6 %. Distances are rounded down and
    at least 1, as in the authors' code. With few steps this gives more checkpoints and better results than the paper's
    rounding up; at 100 steps both agree.
    """
    first, shorter, least = (max(steps * percent // 100, 1) for percent in (22, 3, 6))
    distances, here, distance = {}, first, first
    while here <= steps:
        distances[here] = distance
        distance = max(distance - shorter, least)
        here += distance
    return distances


@dataclass(kw_only=True)
class APGDL1State(APGDState):
    """State of a run in the L1 ball (Croce & Hein 2021): sparse steps, projected onto ball and bounds at once.

    A step changes the largest coordinates of the gradient. How many follows the sparsity of the best point; the step
    size returns to eps while that point becomes sparser, and shrinks otherwise. There is no momentum.
    """

    share: Tensor  # of the coordinates that a step changes
    changed: Tensor  # coordinates in which `top` differed from the image at the last checkpoint
    largest: Tensor  # the largest step size, eps

    @classmethod
    def at(cls, x: Tensor, y: Tensor, target: Tensor, *, eps: float, steps: int, bounds: Bounds) -> "APGDL1State":
        """Return the state of every sample at its own image, before any evaluation."""
        plain = vars(APGDState.at(x, y, target, eps=eps, steps=steps, bounds=bounds))
        largest = torch.full_like(plain["step_size"], eps)
        return cls(
            **{**plain, "step_size": largest},
            share=torch.full_like(largest, FIRST_SHARE),
            changed=torch.full_like(largest, x.shape[1:].numel()),
            largest=largest,
        )

    def start(self, stream: Int[Tensor, "rows"], ball: L1) -> None:  # type: ignore[override]
        """Move to Gaussian noise, projected."""
        noise = 2 * uniform(stream, self.x[0].numel()).to(self.x.dtype).reshape(self.x.shape) - 1
        self.x = self.previous = self._within(self.origin + 2**0.5 * noise.erfinv(), ball)

    def move(self, ball: L1, *, first: bool) -> None:  # type: ignore[override]
        """Take one sparse projected step along the gradient."""
        step = per_sample(self.step_size, self.x) * sparse_sign(self.gradient, self.share)
        self.x, self.previous = self._within(self.x + step, ball), self.x

    def adapt(self, few: float) -> None:
        """At a checkpoint, follow the sparsity of the best point."""
        changed = (self.top != self.origin).flatten(1).sum(1).to(self.x.dtype)
        back = changed < SPARSER * self.changed
        self.share = changed / (SHRINK * self.x[0].numel())
        shorter = (self.step_size / SHRINK).maximum(SMALLEST_STEP * self.largest)
        self.step_size = torch.where(back, self.largest, shorter)
        self.return_to_top(back)
        self.changed = changed

    def _within(self, point: Float[Tensor, "rows *shape"], ball: L1) -> Tensor:
        inside = ball.project_in_box(point - self.origin, self.low - self.origin, self.high - self.origin)
        return (self.origin + ROUNDING * inside).clamp(self.low, self.high)


def sparse_checkpoints(steps: int) -> dict[int, int]:
    """Return the steps after which sparsity and step sizes are adapted, each with its distance from the previous."""
    distance = max(int(CHECK_SHARE * steps), 1)
    return dict.fromkeys(range(distance, steps + 1, distance), distance)
