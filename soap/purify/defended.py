"""A purifier before a classifier, as one module that other libraries can call and attack."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import nn

from soap.passes import straight_through
from soap.purify.purifies import prior_of
from soap.shapes import Float, Tensor


@runtime_checkable
class HasImages(Protocol):
    """What a purifier returns: at least the purified images `x`."""

    @property
    def x(self) -> Tensor:
        """The purified images."""


class Defended(nn.Module):
    """`robust(x)` = logits of the purified input.

    Its gradient with respect to `x` is that of the classifier at the purified point: the purifier is passed
    straight through on the way back (BPDA, Athalye et al. 2018), since the derivative of its sign steps is
    zero almost everywhere. Always in evaluation mode: batch statistics would tie an answer to its batch-mates.
    """

    def __init__(self, model: nn.Module, purify: Callable[[Tensor], HasImages]) -> None:
        super().__init__()
        self.model = model
        self.purify = purify
        self.prior = prior_of(purify)  # a part of the defence: its weights belong to its fingerprint
        self.eval()

    def train(self, mode: bool = True) -> "Defended":
        """Stay in evaluation mode whatever is asked."""
        super().train(False)
        return self

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        return straight_through(self.model, x, self.purify(x).x)
