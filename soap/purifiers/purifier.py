"""The interface of all purifiers, and the facts that result rows need of one: its radius and its generative model."""

from typing import Protocol, runtime_checkable

from torch import nn

from soap.purifiers.defense_gan import DefenseGAN
from soap.purifiers.pixel_defend import PixelDefend
from soap.purifiers.soap import Purified
from soap.shapes import Tensor

FREE = "free"
"""The radius of a purifier without one: its results may be arbitrarily far from the input."""


@runtime_checkable
class Purifier(Protocol):
    """`purify(x)` returns purified images. Its repr shows every setting and is its name in result rows."""

    def __call__(self, x: Tensor, /) -> Purified:
        """Return the purified batch."""


def radius_of(purify: Purifier) -> str:
    """Return the radius as result rows show it: a number, a selection rule like "min-aux", or "free"."""
    return str(getattr(purify, "eps", FREE))


def prior_of(purify: object) -> nn.Module | None:
    """Return the generative model of a purifier; None if the purifier has none."""
    if isinstance(purify, DefenseGAN):
        return purify.generator
    return purify.model if isinstance(purify, PixelDefend) else None
