"""Small convolutional networks that make images: the generator and critic of a WGAN, and an autoencoder."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from soap import validate
from soap.errors import InputError
from soap.models.batch_norm import RectifiedNorm
from soap.shapes import Float, Tensor

LEAKY_SLOPE = 0.2
"""Slope below zero of the critic's leaky ReLUs."""


class PurifierNetwork(nn.Module):
    """A network that a purifier uses; `name` and `purification` (the purifier's settings) come from the recipe.

    `input_shape` is the shape (c, h, w) of an image.
    """

    name: str
    purification: Mapping[str, Any] = MappingProxyType({})
    recordable: bool = True  # no operation waits for the host, so a CUDA graph can replay it
    input_shape: tuple[int, ...]


class Generator(PurifierNetwork):
    """G(z) of a Wasserstein GAN (Gulrajani et al. 2017), used by Defense-GAN: images in [0, 1] from z ~ N(0, I).

    Three transposed convolutions (4 -> 7 -> 14 -> 28 for digits). latent: dimension of z. width: channels before the
    last layer; twice and four times as many in earlier layers. inputs: channels, height and width of the images; both
    sides are multiples of 4. The defaults give 0.95 M parameters, 3.8 MB.
    """

    name = "generator"

    def __init__(self, *, latent: int = 128, width: int = 64, inputs: tuple[int, ...] = (1, 28, 28)) -> None:
        super().__init__()
        validate.at_least("latent", latent, 1)
        _check_sizes(width, inputs)
        self.latent, self.width, self.input_shape = latent, width, inputs
        channels, *sides = inputs
        start = [-(-side // 8) for side in sides]
        # The first transposed convolution maps n to 2n - 1; output padding adds one if a quarter of the side is even.
        more = (sides[0] // 4 - 2 * start[0] + 1, sides[1] // 4 - 2 * start[1] + 1)
        self.layers = nn.Sequential(
            nn.Linear(latent, 4 * width * start[0] * start[1], bias=False),
            nn.Unflatten(1, (4 * width, *start)),
            RectifiedNorm(4 * width),
            nn.ConvTranspose2d(4 * width, 2 * width, 3, stride=2, padding=1, output_padding=more, bias=False),
            RectifiedNorm(2 * width),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
            RectifiedNorm(width),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Float[Tensor, "batch latent"]) -> Float[Tensor, "batch c h w"]:
        """Return one image for each z."""
        images: Tensor = self.layers(z)
        return images


class Critic(nn.Module):
    """D(x): one score for each image, higher for real ones. No batch norm: the penalty uses per-image gradients."""

    def __init__(self, *, width: int = 64, inputs: tuple[int, ...] = (1, 28, 28)) -> None:
        super().__init__()
        _check_sizes(width, inputs)
        self.input_shape = inputs
        channels, height, across = inputs
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2, padding=2),
            nn.LeakyReLU(LEAKY_SLOPE),
            nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(LEAKY_SLOPE),
            nn.Conv2d(2 * width, 4 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(LEAKY_SLOPE),
            nn.Flatten(),
            nn.Linear(4 * width * -(-height // 8) * -(-across // 8), 1),
            nn.Flatten(0),
        )

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """Return the critic's score of each image."""
        scores: Tensor = self.layers(x)
        return scores


class Autoencoder(PurifierNetwork):
    """Images [batch, c, h, w] in [0, 1] -> images of the same shape in (0, 1), through a code of `latent` values.

    A denoiser before a classifier (MagNet's reformer): the code removes noise, because 64 values cannot describe it.
    inputs: shape (c, h, w) of an image; both sides are multiples of 4. width: channels at half the side, and twice as
    many at a quarter of it.
    """

    name = "autoencoder"

    def __init__(self, *, inputs: tuple[int, ...] = (1, 28, 28), width: int = 16, latent: int = 32) -> None:
        super().__init__()
        validate.at_least("latent", latent, 1)
        _check_sizes(width, inputs)
        self.input_shape = tuple(inputs)
        channels, small = inputs[0], (2 * width, inputs[1] // 4, inputs[2] // 4)
        features = small[0] * small[1] * small[2]
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(features, latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, features),
            nn.ReLU(),
            nn.Unflatten(1, small),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return the reconstructions."""
        images: Tensor = self.decoder(self.encoder(x))
        return images


def _check_sizes(width: int, inputs: tuple[int, ...]) -> None:
    validate.at_least("width", width, 1)
    expected = "expected channels, height and width, both sides multiples of 4, e.g. [1, 28, 28]"
    if not isinstance(inputs, list | tuple) or len(inputs) != 3:
        raise InputError(f"inputs is {inputs!r}; {expected}.")
    for value, multiple in zip(inputs, (1, 4, 4), strict=True):
        if not isinstance(value, int) or value < 1 or value % multiple:
            raise InputError(f"inputs is {list(inputs)}; {expected}.")
