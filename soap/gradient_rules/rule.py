"""Logits and input gradient of any model, and the base class of the rules for the gradient through a purifier.

The gradient of an ordinary model comes from autograd. The sign steps of a purifier have derivative zero almost
everywhere, so an attack on a defence uses a rule instead: a module with its own method `logits_and_gradient`.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from soap import validate
from soap._runtime.cuda_graphs import forward_logits, input_gradient, is_replayed
from soap._runtime.isolation import frozen, isolated
from soap._runtime.progress import silent
from soap.descent import loss_and_gradient
from soap.errors import InputError
from soap.shapes import Float, Tensor

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
        _, upstream = loss_and_gradient(criterion, logits)
        return logits, input_gradient(model, x, upstream)
    seen: list[Tensor] = []

    def loss(point: Tensor) -> Tensor:
        logits = model(point)
        seen.append(logits.detach())
        return criterion(logits)

    _, gradient = loss_and_gradient(loss, x)
    return seen[0], gradient


class FiniteLogits(nn.Module):
    """The same predictions as `model`, with finite outputs, and a zero gradient where the model has none.

    Attacks raise an error for NaN logits, for probabilities and without a gradient. An evaluation suite must still run,
    so that its checks can report the flaw. Outputs are increased by one. Cross-entropy and margins do not change, and
    probabilities no longer sum to one, so the check for a softmax layer accepts them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the finite outputs of the model plus one."""
        logits: Tensor = self.model(x)
        logits = logits.nan_to_num(nan=0.0, posinf=1e4, neginf=-1e4) + 1
        if torch.is_grad_enabled() and x.requires_grad:
            logits = logits + 0 * x.flatten(1).sum(1, keepdim=True)
        return logits


def with_finite_logits(model: nn.Module, x: Float[Tensor, "batch *shape"]) -> nn.Module:
    """Return `model`, or `FiniteLogits(model)` if attacks would raise an error for it (tested on 8 samples of `x`)."""
    few = x[:8]
    try:
        with isolated(model):
            logits, _ = logits_and_gradient(model, few, lambda logits: logits.amax(1))
            validate.logits(logits, len(few))
    except InputError:
        return FiniteLogits(model)
    return model


def purified_images(purifier: Purify, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """Return the images that `purifier` makes of `x`, detached from autograd."""
    with torch.enable_grad():  # a user's purifier may rely on gradients being enabled
        return images_of(purifier, x.detach()).detach()


def declared_gradient(purifier: object) -> str | None:
    """Return the gradient rule that the purifier declares in its attribute `gradient`; None if there is none."""
    declared = getattr(purifier, "gradient", None)
    return declared if isinstance(declared, str) else None


def images_of(purifier: Purify, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """Return the images that `purifier` makes of `x`, with their autograd graph."""
    with silent():
        made = purifier(x)
    images = made if isinstance(made, Tensor) else getattr(made, "x", made)
    if not isinstance(images, Tensor) or images.shape != x.shape:
        raise InputError(
            f"the purifier returned {validate.describe(images)}, expected purified images of shape {list(x.shape)}, "
            "as a tensor or as attribute `.x` of the result."
        )
    return images


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


def exact_logits(
    classifier: nn.Module, purifier: Purify, x: Float[Tensor, "batch *shape"]
) -> Float[Tensor, "batch classes"]:
    """Return the logits of the purified images; if `x` needs a gradient, autograd passes through the purifier."""
    if torch.is_grad_enabled() and x.requires_grad:
        logits: Tensor = classifier(images_of(purifier, x))
        return logits
    return straight_through_logits(classifier, x, purified_images(purifier, x))


class GradientRule(nn.Module):
    """A purifier followed by a classifier, with a rule for the input gradient.

    `forward` gives the logits of the defence; autograd passes straight through the purifier. A subclass applies its
    rule in `logits_and_gradient`, or in the graph of `forward`. Both run in evaluation mode, and no parameter gets a
    gradient.
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

    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits of the defence and a direction that should increase `criterion`: autograd of `forward`."""
        with isolated(self):
            return logits_and_gradient(self.forward, x, criterion)

    def purified(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the purified images, detached from autograd."""
        return purified_images(self.purifier, x)


class Exact(GradientRule):
    """Autograd end to end: the true gradient of a differentiable purifier followed by the classifier.

    Denoisers, autoencoders, filters and diffusion are differentiable; rounding, sign steps and detached results are
    not, as `probe_gradient` finds by trying. Ordinary autograd through the module gives this gradient, too, so other
    libraries and AutoAttack use it. Cost per call: one forward and one backward pass of the purifier and of the
    classifier.

    Memory: what autograd keeps for both. An iterative purifier bounds it by running every step in
    `torch.utils.checkpoint.checkpoint(step, x, use_reentrant=False)`: the steps are computed again in the backward
    pass, with the same random draws.
    """

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        with frozen(self):
            return exact_logits(self.classifier, self.purifier, x)
