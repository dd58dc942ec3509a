"""Auto-PGD (Croce & Hein 2020, Algorithm 1): projected gradient ascent that sets its own step size.

A step goes 2 eps far at first. At checkpoints a row's step is halved, and the row goes back to its best point, where
the loss rose in too few of the steps since the last checkpoint, or where neither step nor best loss have changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch

from soap import validate
from soap._runtime.seeding import streams
from soap.attacks.apgd_walk import Found, Walk, checkpoints
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import LOSSES, TARGETED
from soap.attacks.pgd import BALLS
from soap.balls import Ball
from soap.gradient_rules import logits_and_gradient
from soap.shapes import Float, Int, Tensor


@dataclass(frozen=True, kw_only=True)
class Trace:
    """How an attack went: of every row, the run that gave its result."""

    x: Float[Tensor, "batch *shape"]
    """What the attack returns."""
    last: Float[Tensor, "batch *shape"]
    """Where the run ended: what an attack that does not keep its best iterate would return."""
    loss_curve: Float[Tensor, "points batch"]
    """The loss at the start and after each step, [steps + 1, batch]; NaN once the row has left."""
    fooled_at: Int[Tensor, "batch"]
    """The first step of the run that fooled (0: before any), or -1. `x` fools exactly where it is not -1."""


@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Climb `loss` inside a ball of radius `eps`, on any model whose input gradient is known (`soap.gradient_rules`).

    A run costs `steps` + 1 looks, a call one forward pass more. A row keeps the point of highest loss among those that
    fool, the clean image included; where none does, among all.

    - `loss`: "ce", "margin" or "dlr"; "targeted-dlr" and "targeted-margin" make one run towards each of the `targets`
      likeliest wrong classes.
    - `start`: "random" is on the surface of the ball, as in AutoAttack: uniform noise scaled until its largest
      coordinate is `eps` (Linf), a Gaussian direction of length `eps` (L2), then clipped to [0, 1]. "zero" is the
      image itself; further restarts are random.
    - Rows that are fooled by one run do not enter the next. With `leave_when_fooled` they leave a run, too, at its next
      checkpoint, and images that are misclassified as they are never enter: the same rows are fooled for less. Before
      a row leaves, the model is asked about its point again, beside those that would leave with it: rounding differs
      from batch to batch, and a defence that steps by signs makes other answers of it.

    Starts are drawn from `seed` and the row's own values (`soap._runtime.seeding`), so that rows do not depend on each
    other, nor on how they are split into batches.
    """

    eps: float
    steps: int = 100
    norm: str = "linf"
    loss: str = "ce"
    targets: int = 9
    start: str = "random"
    restarts: int = 1
    rho: float = 0.75
    leave_when_fooled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.at_least("steps", self.steps, 1)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.choice("loss", self.loss, (*LOSSES, *TARGETED))
        validate.at_least("targets", self.targets, 1)
        validate.choice("start", self.start, ("zero", "random"))
        validate.at_least("restarts", self.restarts, 1)
        validate.non_negative("rho", self.rho)
        validate.at_least("seed", self.seed, 0)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """All runs, one after the other, each for the rows that still stand."""
        return self._search(model, x, y).found

    def trace(self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]) -> Trace:
        """The same attack, with what is needed to ask whether it has converged."""
        witness = _Witness(attack=self)
        witness(model, x, y)
        seen = witness.seen[0]
        return Trace(x=seen.found, last=seen.x, loss_curve=seen.curve.T.contiguous(), fooled_at=seen.fooled_at)

    def _search(self, model: Model, x: Tensor, y: Tensor) -> Found:
        clean = model(x)
        whole = Found.nothing(x, self.steps)
        if self.leave_when_fooled:
            whole.fooled_at = torch.where(clean.argmax(1) == y, -1, 0)
        for restart, (rank, target) in product(range(self.restarts), enumerate(self._targets(clean, y))):
            rows = (whole.fooled_at < 0).nonzero()[:, 0]
            if len(rows) == 0:
                break
            stream = None if self.start == "zero" and restart == 0 else streams(x[rows], self.seed, restart, rank)
            for part in self._run(model, x[rows], y[rows], target[rows], clean[rows], stream):
                whole.improve(rows[part.row], part)
        return whole

    def _targets(self, logits: Tensor, y: Tensor) -> Sequence[Tensor]:
        """The class of every row to aim at, run by run; an untargeted run is given the label and ignores it."""
        if self.loss not in TARGETED:
            return [y]
        wrong = logits.scatter(1, y[:, None], -torch.inf)
        return wrong.topk(min(self.targets, logits.shape[1] - 1), dim=1).indices.unbind(1)

    def _run(
        self, model: Model, x: Tensor, y: Tensor, target: Tensor, clean: Tensor, stream: Tensor | None
    ) -> Iterator[Walk]:
        """One walk; yields rows when they are done. Only rows that leave it make it wait for the device."""
        ball: Ball = BALLS[self.norm](self.eps)
        checks = checkpoints(self.steps)
        walk = Walk.at(x, y, target, eps=self.eps, steps=self.steps)

        def criterion(logits: Tensor) -> Tensor:
            if self.loss in TARGETED:
                return TARGETED[self.loss](logits, walk.y, walk.target)
            return LOSSES[self.loss](logits, walk.y)

        walk.keep(x, clean, criterion(clean), step=0)
        if stream is not None:
            walk.start(stream, ball)
        for step in range(self.steps + 1):
            if step > 0:
                walk.move(ball, first=step == 1)
            logits, gradient = logits_and_gradient(model, walk.x, criterion)
            walk.see(logits, gradient, criterion(logits), step=step)
            if self.leave_when_fooled and (step in checks or step == self.steps):
                _look_again(model, walk)
                standing = walk.fooled_at < 0
                going, leaving = standing.nonzero()[:, 0], (~standing).nonzero()[:, 0]
                if len(leaving):
                    yield walk.only(leaving)
                    walk = walk.only(going)
                if len(going) == 0:
                    return
            if step in checks and step < self.steps:
                walk.adapt(self.rho * checks[step])
        yield walk


def _look_again(model: Model, walk: Walk) -> None:
    """Ask about the points that fool once more, in a batch of their own; those that do no longer are forgotten."""
    fooled = (walk.fooled_at >= 0).nonzero()[:, 0]
    if len(fooled):
        walk.forget(fooled[model(walk.found[fooled]).argmax(1) == walk.y[fooled]])


@dataclass(frozen=True, kw_only=True)
class _Witness(Attack):
    """The attack by the same door as ever; remembers what it found."""

    attack: APGD
    seen: list[Found] = field(default_factory=list)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append(self.attack._search(model, x, y))
        return self.seen[0].found
