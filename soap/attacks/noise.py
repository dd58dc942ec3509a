"""Random points of the ball: a baseline without gradients."""

from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, Model
from soap.balls import BALLS, L2
from soap.descent import UNIT, Bounds
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True, repr=False)
class Noise(Attack):
    """Try up to `draws` random points for every sample; keep the first misclassified one, or the last.

    Points are drawn from `seed` and the sample's own values (`soap._runtime.seeding`), so samples do not depend on each
    other.
    """

    eps: float
    norm: str = "linf"
    draws: int = 50
    seed: int = 0
    bounds: Bounds = UNIT
    targeted: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.at_least("draws", self.draws, 1)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Draw points for the samples that are still classified correctly."""
        found, rows = x.clone(), torch.arange(len(x), device=x.device)
        for draw in range(self.draws):
            origin = x[rows]
            point = (origin + self._perturbation(origin, draw)).clamp(*self.bounds)
            found[rows] = point
            rows = rows[~self.succeeds(model(point), y[rows])]
            if len(rows) == 0:
                break
        return found

    def _perturbation(self, x: Tensor, draw: int) -> Tensor:
        """Return a uniform point of the ball for every sample, from the sample's own random stream."""
        size = x[0].numel()
        drawn = uniform(streams(x, self.seed, draw), size + 1).to(x.dtype)
        flat = 2 * drawn[:, :size] - 1
        if self.norm == "l1":  # exponential sizes, normalised, at radius eps * u^(1/d)
            sizes = -torch.log1p(-flat.abs())
            flat = flat.sign() * sizes / sizes.sum(1, keepdim=True) * drawn[:, size:] ** (1 / size)
        if self.norm == "l2":  # a Gaussian direction at radius eps * u^(1/d)
            flat = L2(self.eps).steepest(flat.erfinv()) * drawn[:, size:] ** (1 / size)
        return self.eps * flat.reshape(x.shape)
