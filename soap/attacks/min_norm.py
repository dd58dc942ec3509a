"""What the attacks that look for the smallest perturbation share: who enters, the bound, and the success rate.

They minimise the Euclidean norm and know no radius; the paper projects their result onto one (4 for MNIST,
2 for CIFAR) and counts how often the projection was not needed.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, Model, fooled
from soap.balls import L2, row_norms
from soap.shapes import Float, Int, Tensor

ROUNDING = 1e-5
"""A projected row lies on the sphere but for rounding; norms this close (relative) are on it, not inside."""


@dataclass(frozen=True, kw_only=True)
class MinimalL2(Attack):
    """Search the nearest misclassified point; `radius` bounds the result in L2, None leaves it unbounded.

    A row that is misclassified already is its own nearest point: it is returned as it is and costs nothing.
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            validate.non_negative("radius", self.radius)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Search for the rows that are classified rightly, then project all onto the ball."""
        found = x.clone()
        rows = (~fooled(model, x, y)).nonzero()[:, 0]
        if len(rows):
            found[rows] = self.search(model, x[rows], y[rows])
        return found if self.radius is None else project(found, x, self.radius)

    @abstractmethod
    def search(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """The search itself, unbounded, on rows which are all classified as `y`."""


def project(
    found: Float[Tensor, "batch *shape"], x: Float[Tensor, "batch *shape"], radius: float
) -> Float[Tensor, "batch *shape"]:
    """Pull rows farther than `radius` from `x` back onto the sphere; the others come back bit for bit."""
    delta = found - x
    outside = per_row(row_norms(delta) > radius, x)
    return torch.where(outside, (x + L2(radius).project(delta)).clamp(0, 1), found)


def per_row(values: Tensor, like: Float[Tensor, "batch *shape"]) -> Tensor:
    """One value a row, as a tensor that broadcasts against `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def success(
    model: Model,
    radius: float | None,
    x: Float[Tensor, "batch *shape"],
    x_adv: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
) -> Tensor:
    """Which rows count as a success in the paper's L2 tables (boolean, [batch]); the rate is their mean.

    Misclassified at `x_adv`, by a perturbation whose L2 norm is smaller than `radius` (an attack's own
    `radius`; None asks for no bound). A row that had to be projected lies on the sphere and is no success,
    even where it fools.
    """
    wrong = fooled(model, x_adv, y)
    return wrong if radius is None else wrong & (row_norms(x_adv - x) < radius * (1 - ROUNDING))
