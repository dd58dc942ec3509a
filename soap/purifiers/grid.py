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
    """Where every radius (ascending) leads: end points, auxiliary losses there, and the loss at the start.

    `trails[i]` are the points x_0 ... x_T of radius i; radii share them for as long as they walk one path.
    """

    radii: Float[Tensor, "k"]
    trails: tuple[tuple[Float[Tensor, "batch *shape"], ...], ...]
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
    """Descend `loss` from `x` for `steps` steps inside the Linf ball of every radius of the grid.

    Nothing in it waits for the host or copies from it, so that a GPU can replay it as one graph.
    """
    radii = sorted(set(grid))
    moving = [r for r in radii if r > 0]

    def path(radius: float, t: int) -> float:
        return _path(radius, t * step_size)

    def paths(t: int) -> list[float]:
        return _paths(moving, t * step_size)

    points, loss_before = x.unsqueeze(0), None  # points: [paths, batch, ...]
    trails: dict[float, list[Tensor]] = {radius: [x] * (1 if radius else steps + 1) for radius in radii}
    for t in range(1, steps + 1) if moving else ():
        losses, gradients = slope(loss, points.flatten(0, 1))
        loss_before = losses if loss_before is None else loss_before
        here = paths(t)
        parents = [paths(t - 1).index(path(name, t - 1)) for name in here]
        slopes = gradients.reshape(points.shape)
        points = advance(
            torch.cat([points[parent] for parent in parents]),
            torch.cat([slopes[parent] for parent in parents]),
            origin=x.repeat(len(here), *[1] * (x.ndim - 1)),
            ball=Linf(torch.cat([x.new_full((len(x),), min(name, moving[-1])) for name in here])),
            step_size=-step_size,
            bounds=bounds,
        ).reshape(len(here), *x.shape)
        for radius in moving:
            trails[radius].append(points[here.index(path(radius, t))])

    with torch.no_grad():
        losses = loss(points.flatten(0, 1)).reshape(points.shape[:2])
    if loss_before is None:  # radius 0 alone: nothing moved
        loss_before = losses[0]
    ends = [paths(steps).index(path(radius, steps)) for radius in moving]
    stays = radii[0] == 0
    return GridWalk(
        radii=torch.cat([x.new_full((1,), radius) for radius in radii]),
        trails=tuple(map(tuple, trails.values())),
        points=torch.stack([trail[-1] for trail in trails.values()]),
        losses=torch.stack([loss_before] * stays + [losses[end] for end in ends]),
        loss_before=loss_before,
    )


def widest(grid: Sequence[float], *, step_size: float, steps: int) -> int:
    """The most paths that are walked side by side: what one image occupies at once."""
    return max(1, *(len(_paths([r for r in grid if r > 0], t * step_size)) for t in range(1, steps + 1)))


def _path(radius: float, reach: float) -> float:
    """The path that a radius is on once |delta| may be as large as `reach`."""
    return radius if radius < reach * (1 - ROUNDING) else TRUNK


def _paths(moving: Sequence[float], reach: float) -> list[float]:
    """The distinct paths at that time."""
    return sorted({_path(radius, reach) for radius in moving})
