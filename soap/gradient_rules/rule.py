"""What an attacker sees of a model: its logits at a point, and a direction that raises a loss of them.

For most models the direction is the gradient. A defence that optimises at inference hides its own, so the attacker
brings a rule in its place: a model with a method `look` is asked by it, any other is differentiated.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import nn

from soap._runtime.passes import answers, pulled_back, replays
from soap.attacks.attack import Model
from soap.descent import slope
from soap.shapes import Float, Tensor

Criterion = Callable[[Tensor], Tensor]
"""Logits [batch, classes] -> what the attacker wants to raise, [batch]; rows must not influence each other."""


@runtime_checkable
class Sighted(Protocol):
    """A model that brings its own rule for the gradient."""

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of the model as it answers, the whole defence included."""

    def look(self, x: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor]:
        """The same logits, and a direction that should raise `criterion` of them, shaped like `x`."""


def look(
    model: Model, x: Float[Tensor, "batch *shape"], criterion: Criterion
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
    """Logits at `x` and the direction to go, by the model's own rule where it has one."""
    if isinstance(model, Sighted):
        return model.look(x, criterion)
    if isinstance(model, nn.Module) and replays(model, x):
        logits = answers(model, x)
        _, upstream = slope(criterion, logits)
        return logits, pulled_back(model, x, upstream)
    seen: list[Tensor] = []

    def loss(point: Tensor) -> Tensor:
        logits = model(point)
        seen.append(logits.detach())
        return criterion(logits)

    _, gradient = slope(loss, x)
    return seen[0], gradient
