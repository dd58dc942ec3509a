"""Projected gradient descent (Madry et al. 2017; Algorithm 1 of the paper) and FGSM, its single step."""

from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.cuda_graphs import replayed
from soap.attacks.attack import Attack, Model, fooled
from soap.attacks.losses import LOSSES
from soap.balls import BALLS, Ball
from soap.descent import projected_gradient
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Climb the classification loss inside a ball of radius `eps`.

    The paper starts at delta = 0, does not restart, and takes the last iterate: the defaults. With
    `restarts`, every further run starts at random, only rows not yet fooled go on, and a row keeps the
    first point that fools or else the last run's. Random starts are drawn anew from `seed` at every call.
    """

    eps: float
    step_size: float
    steps: int
    norm: str = "linf"
    start: str = "zero"
    restarts: int = 1
    keep: str = "last"
    loss: str = "ce"
    seed: int = 0

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.positive("step_size", self.step_size)
        validate.at_least("steps", self.steps, 1)
        validate.at_least("restarts", self.restarts, 1)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.choice("start", self.start, ("zero", "random"))
        validate.choice("keep", self.keep, ("last", "best"))
        validate.choice("loss", self.loss, tuple(LOSSES))

    @property
    def recordable(self) -> bool:
        """A walk from zero is; random starts draw from a generator of their own, restarts ask who still stands."""
        return self.start == "zero" and self.restarts == 1

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """One walk for all rows, then further ones from random starts for those that still stand."""
        if self.recordable:  # a generator cannot be made while a graph is being recorded
            return self._walk(model, x, y, None)
        generator = torch.Generator(x.device).manual_seed(self.seed)
        found = self._walk(model, x, y, generator if self.start == "random" else None)
        for _ in range(1, self.restarts):
            standing = (~fooled(model, found, y)).nonzero()[:, 0]
            if len(standing) == 0:
                break
            found[standing] = self._walk(model, x[standing], y[standing], generator)
        return found

    def _walk(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        ball: Ball = BALLS[self.norm](self.eps)
        loss = LOSSES[self.loss]
        start = x if generator is None else (x + ball.random_start(x, generator)).clamp(0, 1)

        def climb(x: Tensor, y: Tensor, start: Tensor) -> tuple[Tensor, ...]:
            top = projected_gradient(
                lambda point: loss(model(point), y),
                x,
                ball=ball,
                step_size=self.step_size,
                steps=self.steps,
                start=start,
                keep_best=self.keep == "best",
            )
            return (top,)

        return replayed(model, self, climb, x, y, start)[0]


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One sign step of size `eps` (Goodfellow et al. 2014)."""

    eps: float

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)

    @property
    def recordable(self) -> bool:
        """One step never waits."""
        return True

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """PGD with a single step as long as the radius."""
        return PGD(eps=self.eps, step_size=self.eps or 1.0, steps=1).perturb(model, x, y)
