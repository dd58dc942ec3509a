"""Logits and input gradient of any model, and the base class of the rules that replace a purifier's gradient.

The gradient of an ordinary model comes from autograd. The sign steps of a purifier have derivative zero almost
everywhere, so an attack on a defence uses a rule instead: a module with its own method `logits_and_gradient`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from soap._runtime.isolation import frozen
from soap._runtime.passes import forward_logits, input_gradient, is_replayed
from soap.descent import slope
from soap.errors import InputError
from soap.shapes import Float, Tensor
from soap.validate import describe

Criterion = Callable[[Tensor], Tensor]
"""Logits [batch, classes] -> the value to increase [batch]. Samples must not influence each other."""

Purify = Callable[[Tensor], object]
"""Images -> purified images of the same shape, as a tensor or as attribute `.x` of the result."""


@runtime_checkable
class OwnGradient(Protocol):
    """A model with its own rule for the input gradient."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of the whole model, purifier included."""

    def logits_and_gradient(self, x: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor]:
        """Return the same logits, and a direction of the shape of `x` that should increase `criterion`."""


def logits_and_gradient(
    model: nn.Module | Callable[[Tensor], Tensor], x: Float[Tensor, "batch *shape"], criterion: Criterion
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
    """Return the logits at `x` and the input gradient of `criterion`, by the model's own rule if it has one."""
    if isinstance(model, OwnGradient):
        return model.logits_and_gradient(x, criterion)
    if isinstance(model, nn.Module) and is_replayed(model, x):
        logits = forward_logits(model, x)
        _, upstream = slope(criterion, logits)
        return logits, input_gradient(model, x, upstream)
    seen: list[Tensor] = []

    def loss(point: Tensor) -> Tensor:
        logits = model(point)
        seen.append(logits.detach())
        return criterion(logits)

    _, gradient = slope(loss, x)
    return seen[0], gradient


def purified_images(purifier: Purify, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """Return the images that `purifier` makes of `x`, detached from autograd."""
    with torch.enable_grad():  # a user's purifier may rely on gradients being enabled
        made = purifier(x.detach())
    images = made if isinstance(made, Tensor) else getattr(made, "x", made)
    if not isinstance(images, Tensor) or images.shape != x.shape:
        raise InputError(
            f"the purifier returned {describe(images)}, expected purified images of shape {list(x.shape)}, "
            "as a tensor or as attribute `.x` of the result."
        )
    return images.detach()


def straight_through_logits(
    classifier: nn.Module, x: Float[Tensor, "batch *shape"], purified: Float[Tensor, "batch *shape"]
) -> Float[Tensor, "batch classes"]:
    """Return `classifier(purified)`, whose gradient with respect to `x` treats the purifier as the identity."""
    if torch.is_grad_enabled() and x.requires_grad:
        purified = purified + (x - x.detach())  # adds zero to the value and the identity to the gradient
    elif not torch.is_grad_enabled() and is_replayed(classifier, purified):
        return forward_logits(classifier, purified)
    logits: Tensor = classifier(purified)
    return logits


class GradientRule(nn.Module, ABC):
    """A purifier followed by a classifier, with a rule for the input gradient.

    `forward` gives the logits of the defence; autograd passes straight through the purifier. `logits_and_gradient`
    applies the subclass's rule. Both run in evaluation mode, and no parameter gets a gradient.
    """

    def __init__(self, classifier: nn.Module, purifier: Purify) -> None:
        super().__init__()
        self.classifier = classifier
        self.purifier = purifier

    @classmethod
    def applies_to(cls, purifier: Purify) -> bool:
        """Return whether the purifier has the methods that this rule needs."""
        return True

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        with frozen(self):
            return straight_through_logits(self.classifier, x, self.purified(x))

    @abstractmethod
    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits of the defence and a direction that should increase `criterion`."""

    def purified(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the purified images, detached from autograd."""
        return purified_images(self.purifier, x)
