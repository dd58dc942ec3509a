"""A defence that purifies, as one attacks it who knows the purifier: BPDA at both ends of its path and along it.

The derivative of a purifier's sign steps is zero almost everywhere, so the attacker puts another rule in its place.
BPDA (Athalye et al. 2018) takes the purifier for the identity on the way back. Croce et al. (2022), whose evaluation
of SOAP is the only one published, average that gradient over the iterates of the purification. Where a purifier keeps
the classifier's label and goes far to make it surer, only the gradient before it went says how to change that label.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from soap._runtime.isolation import frozen, isolated
from soap._runtime.passes import purified_by, straight_through
from soap.attacks.sight import Criterion, look
from soap.errors import InputError
from soap.shapes import Float, Tensor
from soap.validate import describe

SIDE_BY_SIDE = {"cpu": 128, "cuda": 1024}
"""Points of the purifier's path looked at at once at most: on a CPU more are no faster; a GPU's number is that of the
sign walks, and was not tried here."""

Purify = Callable[[Tensor], object]
"""Images to purified images of the same shape: a tensor, or something that has them as `.x`."""


@runtime_checkable
class Walks(Protocol):
    """A purifier that tells the way it went."""

    def __call__(self, x: Tensor) -> object:
        """The purified images, as `Purify` has them."""

    def path(self, x: Tensor) -> Tensor:
        """The iterates x_0 (`x` or a start near it), x_1 ... x_T, [T + 1, batch, ...]; the last are purified."""


class Adaptive(nn.Module, ABC):
    """`model` behind `purify`: logits of the whole defence, and an attacker's own rule for its gradient.

    `forward` is differentiable with the purifier passed straight through, as in `soap.Defence`; attacks that ask by
    `look` get the rule of the subclass. Whoever calls, the networks answer in evaluation mode and no parameter gets a
    gradient.
    """

    def __init__(self, model: nn.Module, purify: Purify) -> None:
        super().__init__()
        self.model = model
        self.purify = purify

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        with frozen(self):
            return straight_through(self.model, x, self.purified(x))

    @abstractmethod
    def look(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Logits of the whole defence, and a direction that should raise `criterion` of them."""

    def purified(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """The purified images, without a graph."""
        return purified_by(self.purify, x)


class Bpda(Adaptive):
    """The classifier's gradient at the purified point, the purifier taken for the identity (Athalye et al. 2018).

    A look costs one purification, and one forward and backward pass of the classifier.
    """

    def look(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Logits, and the gradient of `criterion` at the purified point."""
        with isolated(self):
            return look(self.model, self.purified(x), criterion)


class StartBpda(Adaptive):
    """The classifier's gradient at the attacker's own point, the answers those of the whole defence.

    An attack keeps the points that are better against the defence, and is done where that is fooled: so it differs from
    one on the classifier alone. A look costs one purification, and two forward and one backward pass of the
    classifier.
    """

    def look(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Logits of the whole defence, and the gradient of `criterion` at `x` itself."""
        with isolated(self), torch.no_grad():
            return self(x), look(self.model, x, criterion)[1]


class TrajectoryBpda(Adaptive):
    """The classifier's gradient averaged over all iterates of the purification (Croce et al. 2022).

    The mean is over x_0 ... x_T, the attacker's own point and the purified one included, at the radius that the
    purifier chose for each image. A look costs one purification, and T + 1 forward and backward passes of the
    classifier: the purified point's alone, lest it answer otherwise than the defence, the others' side by side.
    """

    purify: Walks

    def __init__(self, model: nn.Module, purifier: Walks) -> None:
        if not isinstance(purifier, Walks):
            raise InputError(
                f"got the purifier {describe(purifier)}, want one with a method path(x) that gives its iterates "
                "[T + 1, batch, ...]; without it use Bpda."
            )
        super().__init__(model, purifier)

    def look(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Logits at the purified point, and the mean gradient of `criterion` along the path to it."""
        with isolated(self):
            with torch.enable_grad():  # a path may be differentiated, too
                path = self.purify.path(x.detach()).detach()
            if path.ndim != x.ndim + 1 or path.shape[1:] != x.shape:
                raise InputError(
                    f"the purifier's path is a {describe(path)}, want [T + 1, {', '.join(map(str, x.shape))}]."
                )
            logits, last = look(self.model, path[-1], criterion)
            at_once = max(1, SIDE_BY_SIDE.get(x.device.type, SIDE_BY_SIDE["cpu"]) // max(1, len(x)))
            of_each = partial(_of_each, criterion, len(x))
            way = [look(self.model, points.flatten(0, 1), of_each)[1] for points in torch.split(path[:-1], at_once)]
            return logits, torch.cat([*way, last]).reshape(path.shape).mean(0)


def _of_each(criterion: Criterion, rows: int, logits: Tensor) -> Tensor:
    """The criterion of several points of each row, [points * rows]."""
    return torch.cat([criterion(part) for part in torch.split(logits, rows)])
