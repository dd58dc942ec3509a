"""Auto-PGD (Croce & Hein 2020, Algorithm 1): projected gradient ascent with an adaptive step size.

The first step size is 2 eps. At checkpoints the step size of a sample is halved, and the sample returns to its best
point, if the loss rose in too few steps since the last checkpoint, or if neither step size nor best loss changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from soap import validate
from soap._runtime.seeding import streams
from soap.attacks.apgd_state import APGDL1State, APGDState, BestPoints, checkpoints, sparse_checkpoints
from soap.attacks.attack import Attack, Model, in_parts, logits_of
from soap.attacks.losses import LOSSES, TARGETED, LossFunction, check_loss, objective
from soap.balls import BALLS, Ball
from soap.descent import UNIT, Bounds
from soap.errors import InputError
from soap.gradient_rules import logits_and_gradient
from soap.shapes import Float, Int, Tensor


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The course of an attack: for every sample, the run that gave its result."""

    x: Float[Tensor, "batch *shape"]
    """The result of the attack."""
    last: Float[Tensor, "batch *shape"]
    """The last point of the run: the result of an attack that does not keep its best iterate."""
    loss_curve: Float[Tensor, "points batch"]
    """The loss at the start and after each step, [steps + 1, batch]; NaN after a sample has left the run."""
    fooled_at: Int[Tensor, "batch"]
    """The first successful step of the run (0: before the first step), or -1. `x` is a success where it is not -1."""


@dataclass(frozen=True, kw_only=True, repr=False)
class APGD(Attack):
    """Ascend `loss` inside a ball of radius `eps`, with the model's own gradient rule if it has one.

    A run costs `steps` + 1 gradients, a call one forward pass more. A sample keeps the adversarial point of highest
    loss, the clean image included; if there is none, the point of highest loss.

    - `loss`: "ce", "margin" or "dlr". "targeted-dlr" and "targeted-margin" make one run towards each of the `targets`
      most probable wrong classes. Or a function (logits, y) -> one loss per sample, higher for better attacks on the
      class `y`; with `targeted` it is decreased.
    - `start`: "random" is on the surface of the ball, as in AutoAttack: uniform noise scaled until its largest
      coordinate is `eps` (Linf), or a Gaussian direction of length `eps` (L2), then clipped; in L1, projected
      Gaussian noise. "zero" is the image itself; further restarts are random.
    - `norm`: "linf", "l2", or "l1" with sparse steps (Croce & Hein 2021), which do not use `rho`.
    - Samples with success in one run do not enter the next. With `leave_when_fooled` they also leave a run at its next
      checkpoint, and images that are misclassified from the start never enter: the same samples succeed at lower cost.
      Before a sample leaves, the model is evaluated at its point again, in a batch of the samples that would leave:
      rounding differs between batches, and the sign steps of a purifier can turn that into another prediction.

    Starts are drawn from `seed` and the sample's own values (`soap._runtime.seeding`), so samples do not depend on each
    other, nor on how they are split into batches.
    """

    eps: float
    steps: int = 100
    norm: str = "linf"
    loss: str | LossFunction = "ce"
    targets: int = 9
    start: str = "random"
    restarts: int = 1
    rho: float = 0.75
    leave_when_fooled: bool = False
    seed: int = 0
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.at_least("steps", self.steps, 1)
        validate.choice("norm", self.norm, tuple(BALLS))
        check_loss(self.loss, (*LOSSES, *TARGETED))
        validate.at_least("targets", self.targets, 1)
        validate.choice("start", self.start, ("zero", "random"))
        validate.at_least("restarts", self.restarts, 1)
        validate.non_negative("rho", self.rho)
        validate.at_least("seed", self.seed, 0)
        if self.targeted and self.loss in TARGETED:
            raise InputError(
                f"loss={self.loss!r} selects its own target classes from the true label; "
                f"with targeted=True use one of {', '.join(map(repr, LOSSES))}."
            )

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Make all runs, each for the samples without success so far."""
        return self._search(model, x, y).found

    def trace(self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]) -> Trace:
        """Run the same attack and return its losses and last points, which show whether it converged."""
        best = self._checked(self._search, model, x, y)
        return Trace(x=best.found, last=best.x, loss_curve=best.curve.T.contiguous(), fooled_at=best.fooled_at)

    def _search(self, model: Model, x: Tensor, y: Tensor) -> BestPoints:
        clean = logits_of(model, x)
        best = BestPoints.empty(x, self.steps)
        if self.leave_when_fooled:
            best.fooled_at = torch.where(self.succeeds(clean, y), 0, -1)
        for restart, (rank, target) in product(range(self.restarts), enumerate(self._targets(clean, y))):
            rows = (best.fooled_at < 0).nonzero()[:, 0]
            if len(rows) == 0:
                break
            stream = None if self.start == "zero" and restart == 0 else streams(x[rows], self.seed, restart, rank)
            for part in self._run(model, x[rows], y[rows], target[rows], clean[rows], stream):
                best.improve(rows[part.row], part)
        return best

    def _targets(self, logits: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Return the target classes, run by run; runs of other losses get the label and ignore it."""
        if self.loss not in TARGETED:
            return [y]
        wrong = logits.scatter(1, y[:, None], -torch.inf)
        return wrong.topk(min(self.targets, logits.shape[1] - 1), dim=1).indices.unbind(1)

    def _run(
        self, model: Model, x: Tensor, y: Tensor, target: Tensor, clean: Tensor, stream: Tensor | None
    ) -> Iterator[APGDState]:
        """Make one run; yield samples when they are done. Only samples that leave it wait for the device."""
        ball: Ball = BALLS[self.norm](self.eps)
        kind, schedule = (APGDL1State, sparse_checkpoints) if self.norm == "l1" else (APGDState, checkpoints)
        checks = schedule(self.steps)
        state: APGDState = kind.at(x, y, target, eps=self.eps, steps=self.steps, bounds=self.bounds)

        state.keep(x, self.succeeds(clean, y), self._losses(clean, y, target), step=0)
        if stream is not None:
            state.start(stream, ball)
        for step in range(self.steps + 1):
            if step > 0:
                state.move(ball, first=step == 1)
            logits, gradient = self._evaluate(model, state.x, state.y, state.target)
            losses = self._losses(logits, state.y, state.target)
            state.evaluated(self.succeeds(logits, state.y), gradient, losses, step=step)
            if self.leave_when_fooled and (step in checks or step == self.steps):
                self._confirm(model, state)
                active = state.fooled_at < 0
                going, leaving = active.nonzero()[:, 0], (~active).nonzero()[:, 0]
                if len(leaving):
                    yield state.only(leaving)
                    state = state.only(going)
                if len(going) == 0:
                    return
            if step in checks and step < self.steps:
                state.adapt(self.rho * checks[step])
        yield state

    def _evaluate(self, model: Model, *samples: Tensor) -> tuple[Tensor, ...]:
        """Return logits and gradients at `samples`: points, labels and target classes."""

        def evaluate(x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            return logits_and_gradient(model, x, lambda logits: self._losses(logits, y, target))

        # A user's loss may hold tensors of the whole batch.
        return in_parts(evaluate, *samples) if isinstance(self.loss, str) else evaluate(*samples)

    def _losses(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        if isinstance(self.loss, str) and self.loss in TARGETED:
            return TARGETED[self.loss](logits, y, target)
        return objective(self.loss, self.targeted)(logits, y)

    def _confirm(self, model: Model, state: APGDState) -> None:
        """Evaluate the successful points again, in a batch of their own; discard those without success."""
        fooled = (state.fooled_at >= 0).nonzero()[:, 0]
        if len(fooled):
            state.discard(fooled[~self.succeeds(logits_of(model, state.found[fooled]), state.y[fooled])])
