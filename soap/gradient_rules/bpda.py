"""BPDA (Athalye et al. 2018): the classifier's gradient replaces the gradient through the purifier.

Three variants take the classifier's gradient at different points: at the purified image, at the attacked image before
purification, and averaged over the purifier's iterates (Croce et al. 2022, the published evaluation of SOAP). Some
purifiers keep the predicted label and move to a region where the classifier is flat; there only the gradient before
purification is useful.
"""

from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.errors import InputError
from soap.gradient_rules.rule import Criterion, GradientRule, Purify, logits_and_gradient
from soap.shapes import Float, Tensor
from soap.validate import describe

MAX_ITERATES_PER_PASS = {"cpu": 128, "cuda": 1024}
"""Purifier iterates in one forward pass. Larger passes are not faster on a CPU; the GPU value was not tuned."""


@runtime_checkable
class PathPurifier(Protocol):
    """A purifier that returns its iterates."""

    def __call__(self, x: Tensor) -> object:
        """Return the purified images, as a tensor or as attribute `.x` of the result."""

    def path(self, x: Tensor) -> Tensor:
        """Return the iterates x_0 ... x_T as [T + 1, batch, ...]; x_0 is `x` or a start near it, x_T is purified."""


class StraightThrough(GradientRule):
    """The classifier's gradient at the purified image; the purifier counts as the identity (Athalye et al. 2018).

    Cost per call: one purification, one forward and one backward pass of the classifier.
    """

    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits and the gradient of `criterion` at the purified image."""
        with isolated(self):
            return logits_and_gradient(self.classifier, self.purified(x), criterion)


class StartPoint(GradientRule):
    """The classifier's gradient at the attacked image before purification, with the logits of the whole defence.

    This differs from an attack on the classifier alone: the attack selects its points, and stops, by the logits of the
    defence. Cost per call: one purification, two forward passes and one backward pass of the classifier.
    """

    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits of the defence and the gradient of `criterion` at `x`."""
        with isolated(self), torch.no_grad():
            return self(x), logits_and_gradient(self.classifier, x, criterion)[1]


class MeanOverIterates(GradientRule):
    """The classifier's gradient averaged over all iterates of the purification (Croce et al. 2022).

    The mean is over x_0 ... x_T at the radius that the purifier selected for each image. Cost per call: one
    purification, T + 1 forward and backward passes of the classifier. The purified images get a forward pass of their
    own, because a GPU rounds differently in a larger batch and the logits must equal the defence's.
    """

    purifier: PathPurifier

    def __init__(self, classifier: nn.Module, purifier: PathPurifier) -> None:
        if not self.applies_to(purifier):
            raise InputError(
                f"got the purifier {describe(purifier)}, expected one with a method path(x) that returns its iterates "
                '[T + 1, batch, ...]; use the rule "straight-through" for other purifiers.'
            )
        super().__init__(classifier, purifier)

    @classmethod
    def applies_to(cls, purifier: Purify) -> bool:
        """Return whether the purifier has a method `path`."""
        return isinstance(purifier, PathPurifier)

    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits at the purified images and the mean gradient of `criterion` over the iterates."""
        with isolated(self):
            with torch.enable_grad():  # a user's path() may rely on gradients being enabled
                path = self.purifier.path(x.detach()).detach()
            if path.ndim != x.ndim + 1 or path.shape[1:] != x.shape:
                raise InputError(
                    f"the purifier's path is a {describe(path)}, expected [T + 1, {', '.join(map(str, x.shape))}]."
                )
            logits, last = logits_and_gradient(self.classifier, path[-1], criterion)
            rows = MAX_ITERATES_PER_PASS.get(x.device.type, MAX_ITERATES_PER_PASS["cpu"])
            iterates_at_once = max(1, rows // max(1, len(x)))
            summed = partial(_criterion_of_iterates, criterion, len(x))
            gradients = [
                logits_and_gradient(self.classifier, points.flatten(0, 1), summed)[1]
                for points in torch.split(path[:-1], iterates_at_once)
            ]
            return logits, torch.cat([*gradients, last]).reshape(path.shape).mean(0)


def _criterion_of_iterates(criterion: Criterion, batch: int, logits: Tensor) -> Tensor:
    """Apply `criterion` to the logits of several iterates of each sample, [iterates * batch]."""
    return torch.cat([criterion(part) for part in torch.split(logits, batch)])
