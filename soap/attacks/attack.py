"""The call that all attacks share: `x_adv = attack(model, x, y)`.

An attack is a frozen dataclass; its fields are its settings and its repr is its label in tables. To add one,
write one file with a subclass and a `perturb` method (see examples/).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor

Model = nn.Module | Callable[[Tensor], Tensor]
"""Anything that maps inputs to logits, differentiably."""


class Attack(ABC):
    """Searches, in [0, 1] and inside its own ball, for inputs near `x` that are not classified as `y`."""

    def __call__(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """Adversarial examples for a batch; the model is left as it was, in mode, weights and gradients."""
        validate.inputs(x, model)
        validate.labels(y, x)
        with isolated(model), torch.inference_mode(False), torch.no_grad():
            x, y = x.detach().clone(), y.long().clone()  # autograd cannot record tensors made under inference_mode
            validate.labels(y, x, _classes(model, x[:8]))
            return self.perturb(model, x, y)

    @property
    def recordable(self) -> bool:
        """Whether `perturb` never waits for the host, so that adversarial training may replay it as a CUDA graph."""
        return False

    @abstractmethod
    def perturb(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """The search itself, on checked inputs and a frozen model in evaluation mode."""


_seen: "WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int]], int]]" = WeakKeyDictionary()
"""Models whose logits were looked at, by their weights and the versions of these then."""


def _classes(model: Model, sample: Tensor) -> int:
    """How many classes the model tells apart; it is asked, and what it says is checked, once for the same weights."""
    versions = [(id(weight), weight._version) for weight in model.parameters()] if isinstance(model, nn.Module) else []
    if isinstance(model, nn.Module) and model in _seen and _seen[model][0] == versions:
        return _seen[model][1]
    logits = model(sample)
    validate.logits(logits, len(sample))
    classes = logits.shape[1]
    if classes < 2:
        raise InputError("the model returned 1 logit a row, want one for each of at least 2 classes.")
    if isinstance(model, nn.Module):
        _seen[model] = versions, classes
    return classes


def fooled(model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]) -> Tensor:
    """Which rows are not classified as `y` (boolean, [batch]), by the model in evaluation mode."""
    with isolated(model), torch.no_grad():
        return model(x).argmax(1) != y
