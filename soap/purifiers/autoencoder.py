"""Denoising autoencoder before a classifier (Gu & Rigazio 2014), called the reformer in MagNet (Meng & Chen 2017).

The autoencoder was trained to reconstruct images from noisy copies. Its reconstruction lies near the images that it was
trained on, so a perturbation that does not look like them is lost.
"""

from typing import Any

from torch import nn

from soap.errors import InputError
from soap.purifiers.purifier import ImageMap
from soap.shapes import Float, Tensor
from soap.validate import describe


class Reformer(ImageMap):
    """`Reformer(model)(x)` is the reconstruction of `x` by `model`, clipped to [0, 1].

    model: any network from images to images of the same shape, e.g. `soap.zoo.load_prior("autoencoder-mnist")`.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"got {describe(model)}, expected an nn.Module from images to images: an autoencoder.")
        self.model = self.prior = model

    def settings(self) -> dict[str, Any]:
        """Return the name of the autoencoder."""
        return {"generator": getattr(self.model, "name", type(self.model).__name__)}

    def images(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the reconstructions."""
        made = self.model(x)
        if not isinstance(made, Tensor) or made.shape != x.shape:
            raise InputError(f"the autoencoder returned {describe(made)}, expected images of shape {list(x.shape)}.")
        return made.clamp(0, 1)
