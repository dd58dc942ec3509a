"""What every purifier is to those who evaluate it, and the little they may ask of one."""

from typing import Protocol, runtime_checkable

from torch import nn

from soap.purifiers.defense_gan import DefenseGAN
from soap.purifiers.pixel_defend import PixelDefend
from soap.purifiers.soap import Purified
from soap.shapes import Tensor

FREE = "free"
"""The radius of a purifier that has none: its images may lie anywhere."""


@runtime_checkable
class Purifier(Protocol):
    """`purify(x)` gives purified images, one row an image; its repr tells every setting and is its name in rows."""

    def __call__(self, x: Tensor, /) -> Purified:
        """Purify a batch."""


def radius_of(purify: Purifier) -> str:
    """How its radius is chosen, as rows have it: a number, SOAP's "min-aux" and the like, or "free"."""
    return str(getattr(purify, "eps", FREE))


def prior_of(purify: object) -> nn.Module | None:
    """The generative model that a purifier brings; None where it asks the classifier itself."""
    if isinstance(purify, DefenseGAN):
        return purify.generator
    return purify.model if isinstance(purify, PixelDefend) else None
