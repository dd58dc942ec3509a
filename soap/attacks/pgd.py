"""Projected gradient descent (Madry et al. 2017; Algorithm 1 of the paper) and FGSM, its single step."""

from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.cuda_graphs import replayed
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import LOSSES, objective
from soap.balls import BALLS, Ball
from soap.descent import UNIT, Bounds, projected_gradient
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD(Attack):
    """Ascend the classification loss inside a ball of radius `eps`.

    The defaults are the paper's: start at delta = 0, one run, last iterate. Each of the further `restarts` starts at
    random, for the samples that are still classified correctly. A sample keeps its first adversarial point, or the
    result of the last run. Random starts are drawn from `seed`, the same at every call.
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
    bounds: Bounds = UNIT
    targeted: bool = False

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
        """One run from zero is recordable; random starts need a generator, and restarts read predictions back."""
        return self.start == "zero" and self.restarts == 1

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run once for all samples, then from random starts for those without success."""
        if self.recordable:  # a generator cannot be created while a graph is being recorded
            return self._run(model, x, y, None)
        generator = torch.Generator(x.device).manual_seed(self.seed)
        found = self._run(model, x, y, generator if self.start == "random" else None)
        for _ in range(1, self.restarts):
            rows = (~self.successes(model, found, y)).nonzero()[:, 0]
            if len(rows) == 0:
                break
            found[rows] = self._run(model, x[rows], y[rows], generator)
        return found

    def _run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        ball: Ball = BALLS[self.norm](self.eps)
        loss = objective(self.loss, self.targeted)
        start = x if generator is None else (x + ball.random_start(x, generator)).clamp(*self.bounds)

        def ascend(x: Tensor, y: Tensor, start: Tensor) -> tuple[Tensor, ...]:
            found = projected_gradient(
                lambda point: loss(model(point), y),
                x,
                ball=ball,
                step_size=self.step_size,
                steps=self.steps,
                start=start,
                bounds=self.bounds,
                keep_best=self.keep == "best",
            )
            return (found,)

        return replayed(model, self, ascend, x, y, start)[0]


@dataclass(frozen=True, kw_only=True, repr=False)
class FGSM(Attack):
    """One sign step of size `eps` (Goodfellow et al. 2014)."""

    eps: float
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)

    @property
    def recordable(self) -> bool:
        """One step never waits for the host."""
        return True

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run PGD with a single step as long as the radius."""
        step = PGD(eps=self.eps, step_size=self.eps or 1.0, steps=1, bounds=self.bounds, targeted=self.targeted)
        return step.perturb(model, x, y)
