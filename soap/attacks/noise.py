"""Random points of the ball: what an attacker without any gradient gets, and the least that a defence must stand."""

from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.seeding import streams, uniform
from soap.attacks.attack import Attack, Model
from soap.balls import BALLS, L2
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Up to `draws` random points for every row; a row keeps the first that fools, else the last.

    Drawn from `seed` and the row's own values (`soap._runtime.seeding`): rows do not depend on each other.
    """

    eps: float
    norm: str = "linf"
    draws: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        validate.non_negative("eps", self.eps)
        validate.choice("norm", self.norm, tuple(BALLS))
        validate.at_least("draws", self.draws, 1)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Draw for the rows that still stand."""
        found, standing = x.clone(), torch.arange(len(x), device=x.device)
        for draw in range(self.draws):
            at = x[standing]
            point = (at + self._inside(at, draw)).clamp(0, 1)
            found[standing] = point
            standing = standing[model(point).argmax(1) == y[standing]]
            if len(standing) == 0:
                break
        return found

    def _inside(self, x: Tensor, draw: int) -> Tensor:
        """A point of the ball for every row, uniformly, from the row's own stream."""
        size = x[0].numel()
        drawn = uniform(streams(x, self.seed, draw), size + 1).to(x.dtype)
        flat = 2 * drawn[:, :size] - 1
        if self.norm == "l2":  # a Gaussian direction at radius eps * u^(1/d)
            flat = L2(self.eps).steepest(flat.erfinv()) * drawn[:, size:] ** (1 / size)
        return self.eps * flat.reshape(x.shape)
