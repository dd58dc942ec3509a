"""Data reconstruction (DR): a decoder rebuilds the input from z (section 3.4 of the paper)."""

import torch
from torch import nn
from torch.nn import functional as F

from soap.auxiliary.joint import AuxiliaryTask, JointLosses, JointModel, accuracy
from soap.data import gaussian_noise
from soap.shapes import Float, Int, Tensor


class Reconstruction(AuxiliaryTask):
    """|x - h(f(x))|^2, averaged over coordinates; trained as a denoiser.

    The paper prints a sum over pixels, but its alpha = 100 belongs to the mean.
    """

    def __init__(self, decoder: nn.Module, *, alpha: float = 100.0, noise: float = 0.5) -> None:
        super().__init__()
        self.decoder = decoder
        self.alpha = alpha
        self.noise = noise

    def losses(
        self, model: JointModel, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"], generator: torch.Generator
    ) -> JointLosses:
        """Classify a noisy view, x + N(0, noise) clipped to [0, 1], and rebuild the clean input from it."""
        z = model.encoder(gaussian_noise(x, self.noise, generator))
        logits = model.classifier(z)
        return JointLosses(F.cross_entropy(logits, y), F.mse_loss(self.decoder(z).float(), x), accuracy(logits, y))

    def reconstruct(self, model: JointModel, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the reconstruction h(f(x))."""
        reconstruction: Tensor = self.decoder(model.encoder(x))
        return reconstruction

    def loss(self, model: JointModel, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """Return the mean squared error of the reconstruction, without noise."""
        return (x - self.reconstruct(model, x)).square().flatten(1).mean(1)
