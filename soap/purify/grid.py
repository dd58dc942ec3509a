"""Algorithm 2 for a whole grid of radii at once, sharing every step that the radii have in common.

After t steps |delta| <= t * step_size, so clipping at a radius first binds at the step where t * step_size
exceeds it: until then all larger radii walk one path, the trunk. With T = 5 and a grid in steps of step_size
that takes 11 gradients an image instead of 55, in 5 sequential batches, and 5 further losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from soap.balls import Linf
from soap.descent import Bounds, Loss, advance, slope
from soap.shapes import Float, Tensor

ROUNDING = 1e-6
"""k * step_size and a sum of k steps differ in the last bits; radii this close (relative) have not bound."""

TRUNK = math.inf
"""Name of the path that no radius has bent; a bent path is named by its radius."""


@dataclass(frozen=True, kw_only=True)
class GridWalk:
    """Where every radius (ascending) leads: end points, auxiliary losses there, and the loss at the start."""

    radii: Float[Tensor, "k"]
    points: Float[Tensor, "k batch *shape"]
    losses: Float[Tensor, "k batch"]
    loss_before: Float[Tensor, "batch"]


def walk_grid(
    loss: Loss,
    x: Float[Tensor, "batch *shape"],
    grid: Sequence[float],
    *,
    step_size: float,
    steps: int,
    bounds: Bounds,
) -> GridWalk:
    """Descend `loss` from `x` for `steps` steps inside the Linf ball of every radius of the grid."""
    radii = sorted(set(grid))
    moving = [r for r in radii if r > 0]

    def path(radius: float, t: int) -> float:
        return radius if radius < t * step_size * (1 - ROUNDING) else TRUNK

    def paths(t: int) -> list[float]:
        return sorted({path(radius, t) for radius in moving})

    points, loss_before = x.unsqueeze(0), None  # points: [paths, batch, ...]
    for t in range(1, steps + 1) if moving else ():
        losses, gradients = slope(loss, points.flatten(0, 1))
        loss_before = losses if loss_before is None else loss_before
        here = paths(t)
        parents = [paths(t - 1).index(path(name, t - 1)) for name in here]
        clip = x.new_tensor([min(name, moving[-1]) for name in here]).repeat_interleave(len(x))
        points = advance(
            points[parents].flatten(0, 1),
            gradients.reshape(points.shape)[parents].flatten(0, 1),
            origin=x.repeat(len(here), *[1] * (x.ndim - 1)),
            ball=Linf(clip),
            step_size=-step_size,
            bounds=bounds,
        ).reshape(len(here), *x.shape)

    with torch.no_grad():
        losses = loss(points.flatten(0, 1)).reshape(points.shape[:2])
    if loss_before is None:  # radius 0 alone: nothing moved
        loss_before = losses[0]
    ends = [paths(steps).index(path(radius, steps)) for radius in moving]
    stay = [0.0] * (len(radii) - len(moving))
    return GridWalk(
        radii=x.new_tensor(radii),
        points=torch.cat([x.unsqueeze(0)[: len(stay)], points[ends]]),
        losses=torch.cat([loss_before.unsqueeze(0)[: len(stay)], losses[ends]]),
        loss_before=loss_before,
    )
