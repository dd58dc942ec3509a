"""Rotation prediction (RP): tell by which quarter turn an image was rotated (Gidaris et al. 2018)."""

import torch
from torch import nn
from torch.nn import functional as F

from soap.auxiliary.task import AuxiliaryTask, Classifies, JointLosses, accuracy
from soap.data import gaussian_noise
from soap.shapes import Float, Int, Tensor

TURNS = 4


def all_turns(x: Float[Tensor, "batch c side side"]) -> Float[Tensor, "batch4 c side side"]:
    """The four rotations of every image by 0, 90, 180 and 270 degrees, stacked turn by turn."""
    return torch.cat([torch.rot90(x, k, dims=(2, 3)) for k in range(TURNS)])


class Rotation(AuxiliaryTask):
    """Trained with cross entropy over the four turns; purified with the squared error of their softmax.

    The paper found that cross entropy under-estimates the radius at test time (section 3.4).
    """

    def __init__(self, head: nn.Module, *, alpha: float = 0.5, noise: float = 0.1) -> None:
        super().__init__()
        self.head = head
        self.alpha = alpha
        self.noise = noise

    def losses(
        self, model: Classifies, x: Float[Tensor, "batch c s s"], y: Int[Tensor, "batch"], generator: torch.Generator
    ) -> JointLosses:
        """Classify object and turn on all four noisy rotations; losses are averaged over the copies."""
        z = model.encoder(gaussian_noise(all_turns(x), self.noise, generator))
        logits, labels = model.classifier(z), y.repeat(TURNS)
        return JointLosses(
            F.cross_entropy(logits, labels),
            F.cross_entropy(self.head(z), self._turns(x)),
            accuracy(logits, labels),
        )

    def loss(self, model: Classifies, x: Float[Tensor, "batch c s s"]) -> Float[Tensor, "batch"]:
        """Squared error between softmax and one-hot turn, summed over the four copies."""
        probabilities = self.head(model.encoder(all_turns(x))).softmax(1)
        target = (self._turns(x)[:, None] == torch.arange(TURNS, device=x.device)).to(x.dtype)
        error: Tensor = (probabilities - target).square().sum(1)
        return error.reshape(TURNS, len(x)).sum(0)

    @staticmethod
    def _turns(x: Tensor) -> Tensor:
        return torch.arange(TURNS, device=x.device).repeat_interleave(len(x))
