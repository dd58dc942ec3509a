"""Count the passes of a model, and the fewest that purification by min-aux needs.

The counters are tensors on the device and each count is an operation there, so a replayed CUDA graph is counted like
the calls that it replaces.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from soap.auxiliary import JointModel

RADIUS_TOLERANCE = 1e-6
"""Radii this close (relative) are equal."""


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


def counting_losses(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts evaluations of its auxiliary loss (several views count as one)."""
    copied = copy.deepcopy(model)
    loss = copied.auxiliary.loss
    copied.auxiliary.loss = lambda model, x: meter.mark(loss(model, x))  # type: ignore[method-assign]
    return copied


def counting_logits(model: JointModel, meter: Meter) -> JointModel:
    """A copy of the model that counts its own calls."""
    copied = copy.deepcopy(model)
    copied.register_forward_hook(lambda module, arguments, logits: meter.mark(logits))
    return copied


def needed_points(grid: Sequence[float], *, gamma: float, T: int) -> tuple[list[int], int]:
    """The number of distinct points that need a gradient at each of the T steps, and of those that need a final loss.

    After t steps a radius eps has an effect only if eps < t * gamma; all larger radii share one point. The loss at
    eps = 0 comes with the first gradient.
    """
    positive = [radius for radius in grid if radius > 0]
    if not positive:
        return [], 1

    def points(t: int) -> int:
        reach = t * gamma * (1 - RADIUS_TOLERANCE)
        projected = {radius for radius in positive if radius < reach}
        return len(projected) + any(radius >= reach for radius in positive)

    return [1, *(points(t) for t in range(1, T))], points(T)
