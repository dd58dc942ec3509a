"""How many rows go forward through a function, and for how many a gradient comes back.

The counters are tensors on the device and every count is an operation there, so a replayed CUDA graph counts as the
calls it replaces.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from soap.auxiliary import AuxiliaryTask, JointLosses, JointModel
from soap.auxiliary.task import Classifies
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Passes an image: evaluations, and gradients."""

    forward: float
    backward: float


class Meter:
    """Counts rows; a copy of a model that carries one counts into the same."""

    def __init__(self, device: torch.device) -> None:
        self.rows = torch.zeros(2, dtype=torch.int64, device=device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Meter":
        return self

    def mark(self, output: Tensor) -> Tensor:
        """The same `output` [rows, ...], counted now, and again whenever a gradient passes it."""
        self.rows[0].add_(len(output))
        if not (torch.is_grad_enabled() and output.requires_grad):
            return output
        marked: Tensor = _Mark.apply(output, self.rows)  # type: ignore[no-untyped-call]
        return marked

    def restart(self) -> None:
        """Count from nothing."""
        self.rows.zero_()

    def passes(self, images: int) -> Passes:
        """What was counted, for each of `images`."""
        forward, backward = self.rows.tolist()
        return Passes(forward=forward / images, backward=backward / images)


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, rows: Tensor) -> Tensor:
        ctx.rows = rows
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.rows[1].add_(len(gradients[0]))
        return gradients[0], None


class CountedTask(AuxiliaryTask):
    """An auxiliary task whose purification losses are counted."""

    def __init__(self, task: AuxiliaryTask, meter: Meter) -> None:
        super().__init__()
        self.task, self.meter, self.alpha = task, meter, task.alpha

    def settings(self) -> dict[str, Any]:
        """The task's own."""
        return self.task.settings()

    def losses(self, model: Classifies, x: Tensor, y: Tensor, generator: torch.Generator) -> JointLosses:
        """The task's own, not counted."""
        return self.task.losses(model, x, y, generator)

    def loss(self, model: Classifies, x: Tensor) -> Tensor:
        """The task's own, counted."""
        return self.meter.mark(self.task.loss(model, x))


def counting_losses(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts evaluations of its auxiliary loss (several views are one evaluation)."""
    twin = copy.deepcopy(model)
    twin.task = CountedTask(twin.auxiliary, meter)
    return twin


def counting_logits(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts its own calls."""
    twin = copy.deepcopy(model)
    twin.register_forward_hook(lambda module, arguments, logits: meter.mark(logits))
    return twin


def counting_features(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts what passes its encoder: every view of every image."""
    twin = copy.deepcopy(model)
    twin.encoder.register_forward_hook(lambda module, arguments, features: meter.mark(features))
    return twin
