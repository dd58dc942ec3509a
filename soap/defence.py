"""A purifier before a classifier, as one module that other libraries can call and attack."""

from collections.abc import Callable

from torch import nn

from soap._runtime.isolation import eval_mode
from soap._runtime.passes import purified_by, straight_through
from soap.purifiers.purifier import prior_of
from soap.shapes import Float, Tensor


class Defence(nn.Module):
    """`robust(x)` = logits of the purified input.

    Its gradient with respect to `x` is that of the classifier at the purified point: the purifier is passed
    straight through on the way back (BPDA, Athalye et al. 2018), since the derivative of its sign steps is
    zero almost everywhere. It answers in evaluation mode, whatever mode the model is in: batch statistics would tie an
    answer to its batch-mates.

    purify: gives purified images, as a tensor or as `.x` of what it returns.
    """

    def __init__(self, model: nn.Module, purify: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.model = model
        self.purify = purify
        self.prior = prior_of(purify)  # a part of the defence: its weights belong to its fingerprint
        self.eval()

    def train(self, mode: bool = True) -> "Defence":
        """Stay in evaluation mode whatever is asked."""
        super().train(False)
        return self

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        with eval_mode(self.model):
            return straight_through(self.model, x, purified_by(self.purify, x))
