"""Projected gradient descent (Madry et al. 2017; Algorithm 1 of the paper), FGSM, and PGD with decaying steps."""

from dataclasses import dataclass, replace

import torch

from soap import validate
from soap._runtime.cuda_graphs import replayed
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import LOSSES, LossFunction, check_loss, objective
from soap.balls import BALLS, Ball
from soap.descent import UNIT, Bounds, projected_gradient, projected_step
from soap.gradient_rules import logits_and_gradient
from soap.shapes import Tensor

FIRST_STEP, LAST_STEP = 0.5, 0.01
"""Lengths of the first and of the last step of `DecayingPGD`, in units of the radius."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD(Attack):
    """Ascend the classification loss inside a ball of radius `eps`.

    The defaults are the paper's: start at delta = 0, one run, last iterate. Each of the further `restarts` starts at
    random, for the samples that are still classified correctly. A sample keeps its first adversarial point, or the
    result of the last run. Random starts are drawn from `seed`, the same at every call.

    `loss`: "ce", "margin", "dlr", "probability", or a function (logits, y) -> one loss per sample, higher for better
    attacks on the class `y`. It is increased; with `targeted` it is decreased.

    `norm="l1"`: a step changes few coordinates and may choose ones that are at the bounds already, which ends the
    progress. Use random restarts, or APGD, which is stronger.
    """

    eps: float
    step_size: float
    steps: int
    norm: str = "linf"
    start: str = "zero"
    restarts: int = 1
    keep: str = "last"
    loss: str | LossFunction = "ce"
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
        check_loss(self.loss, tuple(LOSSES))

    @property
    def recordable(self) -> bool:
        """One run from zero is recordable; random starts need a generator, and restarts read predictions back."""
        return self.start == "zero" and self.restarts == 1

    def perturb(self, model: Model, x: Tensor, y: Tensor, *, start: Tensor | None = None) -> Tensor:
        """Run once for all samples, then from random starts for those without success.

        start: where a single run starts, instead of `self.start`; a generator cannot be created while a CUDA graph is
        being recorded, so training draws the start itself.
        """
        if start is not None or self.recordable:
            return self._run(model, x, y, x if start is None else start)
        generator = torch.Generator(x.device).manual_seed(self.seed)
        found = self._run(model, x, y, self.random_start(x, generator) if self.start == "random" else x)
        for _ in range(1, self.restarts):
            rows = (~self.successes(model, found, y)).nonzero()[:, 0]
            if len(rows) == 0:
                break
            found[rows] = self._run(model, x[rows], y[rows], self.random_start(x[rows], generator))
        return found

    def random_start(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return random points of the balls around `x`, within the bounds."""
        return (x + BALLS[self.norm](self.eps).random_start(x, generator)).clamp(*self.bounds)

    def _run(self, model: Model, x: Tensor, y: Tensor, start: Tensor) -> Tensor:
        ball: Ball = BALLS[self.norm](self.eps)
        loss = objective(self.loss, self.targeted)

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

        return replayed(model, replace(self, seed=0), ascend, x, y, start)[0]  # the start is an input


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


@dataclass(frozen=True, kw_only=True, repr=False)
class DecayingPGD(Attack):
    """PGD with steps that shrink linearly, for random models: its last steps average over the noise of the gradient.

    Auto-PGD compares losses to adapt its step size and to keep its best point. The losses of a random model differ by
    chance, so it halves its steps too early and keeps lucky points. A fixed schedule and the last iterate need no loss.

    Step t of T has the length eps * (0.5 * (1 - t / T) + 0.01). The start is random, from `seed` and the sample's own
    values, so samples do not depend on each other. Cost: `steps` gradients, by the model's own rule if it has one.
    """

    eps: float
    steps: int = 100
    norm: str = "linf"
    loss: str = "margin"
    seed: int = 0
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.positive("eps", self.eps)
        validate.at_least("steps", self.steps, 1)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.choice("loss", self.loss, tuple(LOSSES))
        validate.at_least("seed", self.seed, 0)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run once for all samples."""
        ball: Ball = BALLS[self.norm](self.eps)
        loss = objective(self.loss, self.targeted)
        noise = 2 * uniform(streams(x, self.seed), x[0].numel()).to(x.dtype).reshape(x.shape) - 1
        point = (x + ball.project(self.eps * noise)).clamp(*self.bounds)
        for t in range(self.steps):
            _, gradient = logits_and_gradient(model, point, lambda logits: loss(logits, y))
            size = self.eps * (FIRST_STEP * (1 - t / self.steps) + LAST_STEP)
            point = projected_step(
                point, gradient.nan_to_num(), origin=x, ball=ball, step_size=size, bounds=self.bounds
            )
        return point
