"""The interface of all purifiers, and the facts that result rows need of one: its radius and its generative model."""

from typing import Protocol, runtime_checkable

from torch import nn

from soap.purifiers.defense_gan import DefenseGAN
from soap.purifiers.pixel_defend import PixelDefend
from soap.purifiers.soap import Purified
from soap.shapes import Tensor


@runtime_checkable
class Purifier(Protocol):
    """`purify(x)` returns purified images. Its repr shows every setting and is its name in result rows."""

    def __call__(self, x: Tensor, /) -> Purified:
        """Return the purified batch."""


def prior_of(purify: object) -> nn.Module | None:
    """Return the generative model of a purifier; None if the purifier has none."""
    if isinstance(purify, DefenseGAN):
        return purify.generator
    return purify.model if isinstance(purify, PixelDefend) else None
