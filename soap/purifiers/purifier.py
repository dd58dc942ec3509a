"""What every purifier is to those who evaluate it, and the little they may ask of one."""

from typing import Protocol, runtime_checkable

from torch import nn

from soap.purifiers.defense_gan import DefenseGAN
from soap.purifiers.pixel_defend import PixelDefend
from soap.purifiers.soap import Purified
from soap.shapes import Tensor


@runtime_checkable
class Purifier(Protocol):
    """`purify(x)` gives purified images, one row an image; its repr tells every setting and is its name in rows."""

    def __call__(self, x: Tensor, /) -> Purified:
        """Purify a batch."""


def prior_of(purify: object) -> nn.Module | None:
    """The generative model that a purifier brings; None where it asks the classifier itself."""
    if isinstance(purify, DefenseGAN):
        return purify.generator
    return purify.model if isinstance(purify, PixelDefend) else None
