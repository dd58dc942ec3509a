"""Random points of the ball: what an attacker without any gradient gets, and the least that a defence must stand."""

from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Attack, Model
from soap.attacks.pgd import BALLS
from soap.balls import Ball
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Up to `draws` random points for every row; a row keeps the first that fools, else the last."""

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
        generator = torch.Generator(x.device).manual_seed(self.seed)
        ball: Ball = BALLS[self.norm](self.eps)
        found, standing = x.clone(), torch.arange(len(x), device=x.device)
        for _ in range(self.draws):
            at = x[standing]
            point = (at + ball.random_start(at, generator)).clamp(0, 1)
            found[standing] = point
            standing = standing[model(point).argmax(1) == y[standing]]
            if len(standing) == 0:
                break
        return found
