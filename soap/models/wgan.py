"""Generator and critic of a Wasserstein GAN for small images (Gulrajani et al. 2017), as Defense-GAN uses it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from soap import validate
from soap.errors import InputError
from soap.models.norm import RectifiedNorm
from soap.shapes import Float, Tensor

SLOPE = 0.2
"""Of the critic's leaky rectifiers below zero."""


class Generator(nn.Module):
    """G(z): images in [0, 1] from z ~ N(0, I) by three transposed convolutions (4 -> 7 -> 14 -> 28 for digits).

    latent: how many numbers z has. width: channels before the last layer; twice and four times as many earlier.
    inputs: channels, height and width of the images, both sides multiples of 4. The defaults make 0.95 M parameters,
    3.8 MB. `name` and `purification` (a purifier's own settings) come from the recipe.
    """

    name: str = "generator"
    purification: Mapping[str, Any] = MappingProxyType({})
    recordable: bool = True  # nothing here waits for the host

    def __init__(self, *, latent: int = 128, width: int = 64, inputs: tuple[int, ...] = (1, 28, 28)) -> None:
        super().__init__()
        validate.at_least("latent", latent, 1)
        validate.at_least("width", width, 1)
        _check_shape(inputs)
        self.latent, self.width, self.input_shape = latent, width, inputs
        channels, *sides = inputs
        start = [-(-side // 8) for side in sides]
        # The first of the three makes 2n - 1 of n, and one more where a quarter of the side is even.
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
        """One image for every row of z."""
        images: Tensor = self.layers(z)
        return images


class Critic(nn.Module):
    """D(x): one number an image, higher for real ones. No batch norm: the penalty is on each image's own gradient."""

    def __init__(self, *, width: int = 64, inputs: tuple[int, ...] = (1, 28, 28)) -> None:
        super().__init__()
        validate.at_least("width", width, 1)
        _check_shape(inputs)
        self.input_shape = inputs
        channels, height, across = inputs
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(2 * width, 4 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Flatten(),
            nn.Linear(4 * width * -(-height // 8) * -(-across // 8), 1),
            nn.Flatten(0),
        )

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch"]:
        """The critic's number for every image."""
        numbers: Tensor = self.layers(x)
        return numbers


def _check_shape(inputs: tuple[int, ...]) -> None:
    wanted = "want channels, height and width, both sides multiples of 4, e.g. [1, 28, 28]"
    if not isinstance(inputs, list | tuple) or len(inputs) != 3:
        raise InputError(f"inputs is {inputs!r}; {wanted}.")
    for value, multiple in zip(inputs, (1, 4, 4), strict=True):
        if not isinstance(value, int) or value < 1 or value % multiple:
            raise InputError(f"inputs is {list(inputs)}; {wanted}.")
