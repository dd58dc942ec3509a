"""The interface of all attacks: `x_adv = attack(model, x, y)`.

An attack is a frozen dataclass. Its fields are its settings, and its repr is its label in tables. To add one, write one
file with a subclass and its method `perturb` (see examples/own_attack.py).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap._runtime.splitting import in_chunks
from soap.descent import UNIT, Bounds
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor
from soap.specs import function_name, is_function

Model = nn.Module | Callable[[Tensor], Tensor]
"""Any differentiable function from inputs to logits."""

Result = TypeVar("Result")

CPU_ROWS = 128
"""Samples in one pass on a CPU. After a larger pass the C library returns the memory to the system, which clears it
again for the next pass: that takes up to a third of a forward pass of 200 digits."""

SHOWN_IF_CHANGED = ("bounds", "targeted")
"""Fields that a repr omits at their default, so that labels of stored results stay valid."""


class Attack(ABC):
    """Search, inside `bounds` and the attack's own ball, for inputs near `x` that are misclassified.

    bounds: smallest and largest valid input value. targeted: if True, `y` is the class to reach; if False, `y` is the
    true class to leave.

    To write an attack, subclass as a frozen dataclass with `kw_only=True, repr=False` and define `perturb`. Its fields
    are its settings: the repr shows them and results store them, so they should be numbers, texts, tuples, functions or
    dataclasses. Declare `bounds` and `targeted` as fields if callers may set them. `perturb` gets checked copies of `x`
    and `y`, with the model in evaluation mode and autograd off (`soap.descent.loss_and_gradient` turns it on). Its
    results must be inside the attack's ball and `bounds`, and a sample must not depend on the others of its batch.
    """

    bounds: Bounds = UNIT
    targeted: bool = False

    def __call__(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """Return adversarial examples for a batch. Mode, weights and gradients of the model do not change."""
        return self._checked(self.perturb, model, x, y)

    def _checked(self, run: Callable[[Model, Tensor, Tensor], Result], model: Model, x: Tensor, y: Tensor) -> Result:
        """Return `run(model, x, y)` for checked copies of `x` and `y` and a model in evaluation mode."""
        validate.inputs(x, model, self.bounds)
        validate.radius(getattr(self, "eps", None), getattr(self, "norm", "linf"), self.bounds)
        validate.labels(y, x)
        with isolated(model), torch.inference_mode(False), torch.no_grad():
            x, y = x.detach().clone(), y.long().clone()  # autograd cannot record tensors made in inference mode
            validate.labels(y, x, _classes(model, x[:8]))
            return run(model, x, y)

    def __repr__(self) -> str:
        if not is_dataclass(self):
            return super().__repr__()
        shown = [
            f"{field.name}={_text(getattr(self, field.name))}"
            for field in fields(self)
            if field.repr and not (field.name in SHOWN_IF_CHANGED and getattr(self, field.name) == field.default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def recordable(self) -> bool:
        """Whether `perturb` never waits for the host, so that training can replay it as a CUDA graph."""
        return False

    @abstractmethod
    def perturb(
        self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch *shape"]:
        """Return adversarial examples for checked inputs and a frozen model in evaluation mode."""

    def succeeds(self, logits: Float[Tensor, "batch classes"], y: Int[Tensor, "batch"]) -> Tensor:
        """Return which predictions are the goal (boolean, [batch]): `y` if targeted, any other class if not."""
        predicted = logits.argmax(1)
        return predicted == y if self.targeted else predicted != y

    def successes(self, model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]) -> Tensor:
        """Return `succeeds` of the model's logits at `x`; the global random state does not change."""
        with isolated(model), torch.no_grad():
            return self.succeeds(model(x), y)


def _text(value: object) -> str:
    """Return the repr of a setting; a function is shown by its name, because its repr contains an address."""
    return repr(function_name(value)) if callable(value) and is_function(value) else repr(value)


_checked_classes: "WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int]], int]]" = WeakKeyDictionary()
"""Models whose logits were checked: ids and versions of their weights at that time, and the number of classes."""


def _classes(model: Model, sample: Tensor) -> int:
    """Return the number of classes; the logits of a model are computed and checked once for the same weights."""
    versions = [(id(weight), weight._version) for weight in model.parameters()] if isinstance(model, nn.Module) else []
    if isinstance(model, nn.Module) and model in _checked_classes and _checked_classes[model][0] == versions:
        return _checked_classes[model][1]
    with preserved_random_state():  # a random model must not draw differently the next time
        logits = model(sample)
    validate.logits(logits, len(sample))
    classes = logits.shape[1]
    if classes < 2:
        raise InputError("the model returned 1 logit per sample, expected one for each of at least 2 classes.")
    if isinstance(model, nn.Module):
        _checked_classes[model] = versions, classes
    return classes


class LabelQueries:
    """Whether points reach an attack's goal, by the model's labels alone; every call costs its samples one query."""

    def __init__(self, attack: Attack, model: Model, y: Int[Tensor, "batch"], budget: int) -> None:
        self._attack, self._model, self._y = attack, model, y
        self.left = torch.full_like(y, budget)
        """Queries left to every sample of the batch."""

    def __call__(self, rows: Int[Tensor, "rows"], points: Float[Tensor, "rows *shape"]) -> Tensor:
        """Return which points are adversarial; `rows` are their samples in the batch, each at most once."""
        self.left[rows] -= 1
        return self._attack.succeeds(self._model(points), self._y[rows])


def in_parts(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return `function(*inputs)`; on a CPU it is called on parts of equal size, of at most `CPU_ROWS` samples each."""
    parts = math.ceil(len(inputs[0]) / CPU_ROWS)
    if inputs[0].is_cuda or parts <= 1:
        return function(*inputs)
    return in_chunks(function, *inputs, max_rows=math.ceil(len(inputs[0]) / parts), release=lambda: None)


def logits_of(model: Model, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
    """Return `model(x)`, computed `in_parts`."""
    return in_parts(lambda part: (model(part),), x)[0]


def fooled(model: Model, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"]) -> Tensor:
    """Return which samples are not classified as `y` (boolean, [batch]), with the model in evaluation mode."""
    with isolated(model), torch.no_grad():
        return model(x).argmax(1) != y
