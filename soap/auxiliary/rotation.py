"""Rotation prediction (RP): predict by which quarter turn an image is rotated (Gidaris et al. 2018)."""

import torch
from torch import nn
from torch.nn import functional as F

from soap.auxiliary.joint import AuxiliaryTask, JointLosses, JointModel, accuracy
from soap.data import gaussian_noise
from soap.shapes import Float, Int, Tensor

TURNS = 4
"""Rotations by 0, 90, 180 and 270 degrees."""


def all_turns(x: Float[Tensor, "batch c side side"]) -> Float[Tensor, "batch4 c side side"]:
    """Return the rotations of all images by 0, then 90, 180 and 270 degrees."""
    return torch.cat([torch.rot90(x, k, dims=(2, 3)) for k in range(TURNS)])


class Rotation(AuxiliaryTask):
    """Cross entropy over the four turns in training; squared error of their softmax in purification.

    The paper finds that cross entropy underestimates the radius at test time (section 3.4).
    """

    def __init__(self, head: nn.Module, *, alpha: float = 0.5, noise: float = 0.1) -> None:
        super().__init__()
        self.head = head
        self.alpha = alpha
        self.noise = noise

    def losses(
        self, model: JointModel, x: Float[Tensor, "batch c s s"], y: Int[Tensor, "batch"], generator: torch.Generator
    ) -> JointLosses:
        """Predict class and turn of all four noisy rotations; the losses are means over the rotations."""
        z = model.encoder(gaussian_noise(all_turns(x), self.noise, generator))
        logits, labels = model.classifier(z), y.repeat(TURNS)
        return JointLosses(
            F.cross_entropy(logits, labels),
            F.cross_entropy(self.head(z), self._turns(x)),
            accuracy(logits, labels),
        )

    def loss(self, model: JointModel, x: Float[Tensor, "batch c s s"]) -> Float[Tensor, "batch"]:
        """Return the squared error between softmax and one-hot turn, summed over the four rotations."""
        probabilities = self.head(model.encoder(all_turns(x))).softmax(1)
        target = (self._turns(x)[:, None] == torch.arange(TURNS, device=x.device)).to(x.dtype)
        error: Tensor = (probabilities - target).square().sum(1)
        return error.reshape(TURNS, len(x)).sum(0)

    @staticmethod
    def _turns(x: Tensor) -> Tensor:
        return torch.arange(TURNS, device=x.device).repeat_interleave(len(x))
