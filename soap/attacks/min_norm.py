"""Base class of attacks that minimise the L2 norm of the perturbation, and the success rate of the paper's L2 tables.

These attacks have no radius. The paper projects their results onto one (4 for MNIST, 2 for CIFAR) and counts the
results that needed no projection as successes.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, Model, fooled
from soap.balls import L2, per_sample, row_norms
from soap.descent import UNIT, Bounds, into_ball
from soap.shapes import Float, Int, Tensor

SPHERE_TOLERANCE = 1e-5
"""Relative. A projected perturbation is on the sphere up to rounding; norms this close to it are not inside."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MinimalL2(Attack):
    """Search for the nearest misclassified point (targeted: the nearest point of class `y`).

    radius: L2 bound of the result; None for no bound. A sample that is already misclassified is returned unchanged
    and costs one forward pass.
    """

    radius: float | None = None
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        if self.radius is not None:
            validate.non_negative("radius", self.radius)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Search for the samples without success, then project all onto the ball."""
        found = x.clone()
        rows = (~self.successes(model, x, y)).nonzero()[:, 0]
        if len(rows):
            found[rows] = self.search(model, x[rows], y[rows])
        return found if self.radius is None else project(found, x, self.radius, self.bounds)

    @abstractmethod
    def search(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """Return the results without a bound, for samples of which none is a success yet."""


def project(
    found: Float[Tensor, "batch *shape"], x: Float[Tensor, "batch *shape"], radius: float, bounds: Bounds = UNIT
) -> Float[Tensor, "batch *shape"]:
    """Project points farther than `radius` from `x` onto the sphere; others stay equal to the last bit."""
    outside = per_sample(row_norms(found - x) > radius, x)
    return torch.where(outside, into_ball(found, x, L2(radius), bounds), found)


def success(
    model: Model,
    radius: float | None,
    x: Float[Tensor, "batch *shape"],
    x_adv: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
) -> Tensor:
    """Return which samples are successes in the paper's L2 tables (boolean, [batch]); the rate is their mean.

    A success is misclassified at `x_adv`, with a perturbation of L2 norm below `radius` (None: of any norm). A
    projected sample is on the sphere and is no success, even if it is misclassified.
    """
    wrong = fooled(model, x_adv, y)
    return wrong if radius is None else wrong & (row_norms(x_adv - x) < radius * (1 - SPHERE_TOLERANCE))
