"""Count forward and backward passes of a model, per sample.

The counters are tensors on the device and each count is an operation there, so a replayed CUDA graph is counted like
the calls that it replaces.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from soap.auxiliary import AuxiliaryTask, JointLosses, JointModel
from soap.shapes import Tensor


@dataclass(frozen=True, kw_only=True)
class PassCount:
    """Forward and backward passes per image."""

    forward: float
    backward: float


class Meter:
    """Counts samples; copies of a model that contains a meter share it."""

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Meter":
        return self

    def mark(self, output: Tensor) -> Tensor:
        """`output` [samples, ...] itself, counted now as forward, and as backward when a gradient passes through it."""
        self.counts[0].add_(len(output))
        if not (torch.is_grad_enabled() and output.requires_grad):
            return output
        marked: Tensor = _Mark.apply(output, self.counts)  # type: ignore[no-untyped-call]
        return marked

    def reset(self) -> None:
        """Set the counts to zero."""
        self.counts.zero_()

    def passes(self, images: int) -> PassCount:
        """The counts divided by `images`."""
        forward, backward = self.counts.tolist()
        return PassCount(forward=forward / images, backward=backward / images)


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, counts: Tensor) -> Tensor:
        ctx.counts = counts
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.counts[1].add_(len(gradients[0]))
        return gradients[0], None


class CountedTask(AuxiliaryTask):
    """An auxiliary task that counts evaluations of its purification loss."""

    def __init__(self, task: AuxiliaryTask, meter: Meter) -> None:
        super().__init__()
        self.task, self.meter, self.alpha = task, meter, task.alpha

    def settings(self) -> dict[str, Any]:
        """Settings of the wrapped task."""
        return self.task.settings()

    def losses(self, model: JointModel, x: Tensor, y: Tensor, generator: torch.Generator) -> JointLosses:
        """Training losses of the wrapped task, not counted."""
        return self.task.losses(model, x, y, generator)

    def loss(self, model: JointModel, x: Tensor) -> Tensor:
        """Purification loss of the wrapped task, counted."""
        return self.meter.mark(self.task.loss(model, x))


def counting_losses(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts evaluations of its auxiliary loss (several views count as one)."""
    copied = copy.deepcopy(model)
    copied.task = CountedTask(copied.auxiliary, meter)
    return copied


def counting_logits(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts its own calls."""
    copied = copy.deepcopy(model)
    copied.register_forward_hook(lambda module, arguments, logits: meter.mark(logits))
    return copied


def counting_features(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts passes of its encoder: each view of each image counts."""
    copied = copy.deepcopy(model)
    copied.encoder.register_forward_hook(lambda module, arguments, features: meter.mark(features))
    return copied
