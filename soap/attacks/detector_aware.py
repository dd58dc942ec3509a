"""Attacks on a classifier together with a detector: misclassified, and with a score as low as possible.

Each attack returns, for every sample, the visited point of lowest score among the misclassified ones: it passes every
threshold that any misclassified visited point passes. A sample that was never misclassified keeps its last point.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field

import torch

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.attacks.losses import objective
from soap.balls import L2, Linf, per_sample
from soap.descent import UNIT, Bounds, into_ball, loss_and_gradient, projected_step
from soap.detection_scores import ScoreFunction
from soap.gradient_rules import logits_and_gradient
from soap.shapes import Float, Tensor


@dataclass(frozen=True, kw_only=True, repr=False)
class DetectorAwareAttack(Attack):
    """Steps from delta = 0 in the Linf ball of radius `eps`, by gradients of the margin loss and of a score.

    score: the detector's score, [batch]; lower is less suspicious. differentiable: the function whose gradient lowers
    the score, if the score itself has none.
    """

    eps: float
    step_size: float
    steps: int
    score: ScoreFunction = field(repr=False)
    differentiable: ScoreFunction | None = field(default=None, repr=False)
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.positive("step_size", self.step_size)
        validate.at_least("steps", self.steps, 1)

    @abstractmethod
    def direction(
        self,
        of_margin: Float[Tensor, "batch *shape"],
        of_score: Float[Tensor, "batch *shape"],
        fooled: Tensor,
        weight: float,
    ) -> Float[Tensor, "batch *shape"]:
        """Return the direction of the next step from the gradients of the margin and of the score."""

    def step(self, x: Tensor, direction: Tensor, origin: Tensor) -> Tensor:
        """Take a sign step."""
        return projected_step(
            x, direction, origin=origin, ball=Linf(self.eps), step_size=self.step_size, bounds=self.bounds
        )

    def runs(self) -> tuple[float, ...]:
        """Return the weights of the score, one for each run."""
        return (1.0,)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Run once for each weight and keep the misclassified point of lowest score."""
        margin = objective("margin", self.targeted)
        best, lowest = x, x.new_full((len(x),), torch.inf)
        for weight in self.runs():
            point = x
            for t in range(self.steps + 1):
                logits, of_margin = logits_and_gradient(model, point, lambda logits: margin(logits, y))
                score, of_score = loss_and_gradient(self.differentiable or self.score, point)
                if self.differentiable is not None:
                    score = self.score(point).detach()
                fooled = self.succeeds(logits, y)
                better = fooled & (score < lowest) | (lowest == torch.inf)  # until the first success, the last point
                best = torch.where(per_sample(better, x), point, best)
                lowest = torch.where(better & fooled, score, lowest)
                if t < self.steps:
                    point = self.step(point, self.direction(of_margin, of_score, fooled, weight), x)
        return best


@dataclass(frozen=True, kw_only=True, repr=False)
class LagrangianPGD(DetectorAwareAttack):
    """Ascend margin - lambda * score by sign steps, one run for each of `lambdas`."""

    lambdas: tuple[float, ...] = (0.1, 1.0, 10.0)

    def runs(self) -> tuple[float, ...]:
        """Return the lambdas."""
        return self.lambdas

    def direction(self, of_margin: Tensor, of_score: Tensor, fooled: Tensor, weight: float) -> Tensor:
        """Return the gradient of margin - lambda * score."""
        return of_margin - weight * of_score


@dataclass(frozen=True, kw_only=True, repr=False)
class SelectivePGD(DetectorAwareAttack):
    """Ascend the margin until the sample is misclassified, else descend the score (Bryniarski et al. 2021)."""

    def direction(self, of_margin: Tensor, of_score: Tensor, fooled: Tensor, weight: float) -> Tensor:
        """Return the gradient of the goal that is not reached yet; the score has no end."""
        return torch.where(per_sample(fooled, of_margin), -of_score, of_margin)


@dataclass(frozen=True, kw_only=True, repr=False)
class OrthogonalPGD(DetectorAwareAttack):
    """Selective PGD with gradients orthogonal to the other goal's, so a step leaves it unchanged to first order.

    (Bryniarski et al. 2021.) The sign of such a gradient is no longer orthogonal, so a step has the direction of the
    gradient and the L2 length of a sign step, step_size * sqrt(d); then it is clipped to the Linf ball.
    """

    def direction(self, of_margin: Tensor, of_score: Tensor, fooled: Tensor, weight: float) -> Tensor:
        """Return the part of the selected gradient that is orthogonal to the other one."""
        toward, other = per_sample(fooled, of_margin), (of_margin, of_score)
        selected = torch.where(toward, -of_score, of_margin)
        return orthogonal_part(selected, torch.where(toward, *other))

    def step(self, x: Tensor, direction: Tensor, origin: Tensor) -> Tensor:
        """Take a step along the normalised direction."""
        moved = x + self.step_size * math.sqrt(x[0].numel()) * L2(math.inf).steepest(direction)
        return into_ball(moved, origin, Linf(self.eps), self.bounds)


def orthogonal_part(
    of: Float[Tensor, "batch *shape"], to: Float[Tensor, "batch *shape"]
) -> Float[Tensor, "batch *shape"]:
    """Return `of` minus its projection on `to`, for every sample; `of` itself where `to` is zero."""
    unit = L2(math.inf).steepest(to)
    return of - per_sample((of * unit).flatten(1).sum(1), of) * unit
