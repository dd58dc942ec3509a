"""Algorithm 2 for a whole grid of radii at once, with shared steps.

After t steps |delta| <= t * step_size, so a radius clips for the first time at the step where t * step_size exceeds it.
Until then all larger radii share one path. With T = 5 and a grid in multiples of step_size this takes 11 gradients per
image instead of 55, in 5 sequential batches, and 5 further losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from soap.balls import Linf
from soap.descent import Bounds, Loss, gradient_steps, projected_step
from soap.shapes import Float, Tensor

RADIUS_TOLERANCE = 1e-6
"""Relative. k * step_size and a sum of k steps differ in the last bits; radii this close do not clip yet."""

UNCLIPPED = math.inf
"""Key of the path that no radius has clipped; a clipped path has its radius as key."""


@dataclass(frozen=True, kw_only=True)
class GridDescent:
    """End points of every radius (ascending), the losses there, and the loss at the input.

    `iterates[i]` are the points x_0 ... x_T of radius i; radii share tensors while they share a path.
    """

    radii: Float[Tensor, "k"]
    iterates: tuple[tuple[Float[Tensor, "batch *shape"], ...], ...]
    points: Float[Tensor, "k batch *shape"]
    losses: Float[Tensor, "k batch"]
    loss_before: Float[Tensor, "batch"]


def descend_grid(
    loss: Loss,
    x: Float[Tensor, "batch *shape"],
    grid: Sequence[float],
    *,
    step_size: float,
    steps: int,
    bounds: Bounds,
) -> GridDescent:
    """Descend `loss` from `x` for `steps` steps inside the Linf ball of every radius of the grid.

    Nothing here waits for the host or copies from it, so a GPU can replay it as one CUDA graph.
    """
    radii = sorted(set(grid))
    moving = [r for r in radii if r > 0]

    path, paths = partial(_path, step_size), partial(_paths, moving, step_size)
    points_of: dict[float, list[Tensor]] = {radius: [x] * (1 if radius else steps + 1) for radius in radii}
    losses_seen: list[Tensor] = []

    def split_and_step(t: int, points: Tensor, gradients: Tensor) -> Tensor:
        """Copy the points [paths * batch, ...] to the paths of step t, each with its own radius, and take the step."""
        here = paths(t)
        parents = [paths(t - 1).index(path(key, t - 1)) for key in here]
        by_path, slopes = points.reshape(-1, *x.shape), gradients.reshape(-1, *x.shape)
        points = projected_step(
            torch.cat([by_path[parent] for parent in parents]),
            torch.cat([slopes[parent] for parent in parents]),
            origin=x.repeat(len(here), *[1] * (x.ndim - 1)),
            ball=Linf(torch.cat([x.new_full((len(x),), min(key, moving[-1])) for key in here])),
            step_size=-step_size,
            bounds=bounds,
        )
        by_path = points.reshape(-1, *x.shape)
        for radius in moving:
            points_of[radius].append(by_path[here.index(path(radius, t))])
        return points

    last = gradient_steps(
        loss,
        x,
        split_and_step,
        steps=steps if moving else 0,
        observe=lambda points, losses: losses_seen.append(losses),
    )
    with torch.no_grad():
        losses = loss(last).reshape(-1, len(x))
    loss_before = losses_seen[0] if losses_seen else losses[0]
    ends = [paths(steps).index(path(radius, steps)) for radius in moving]
    has_zero = radii[0] == 0
    return GridDescent(
        radii=torch.cat([x.new_full((1,), radius) for radius in radii]),
        iterates=tuple(map(tuple, points_of.values())),
        points=torch.stack([points[-1] for points in points_of.values()]),
        losses=torch.stack([loss_before] * has_zero + [losses[end] for end in ends]),
        loss_before=loss_before,
    )


def max_paths(grid: Sequence[float], *, step_size: float, steps: int) -> int:
    """Return the largest number of paths at any step: the points that one image needs in memory at once."""
    return max(1, *(len(_paths([r for r in grid if r > 0], step_size, t)) for t in range(1, steps + 1)))


def _path(step_size: float, radius: float, t: int) -> float:
    """Return the key of the path of a radius after t steps."""
    return radius if radius < t * step_size * (1 - RADIUS_TOLERANCE) else UNCLIPPED


def _paths(moving: Sequence[float], step_size: float, t: int) -> list[float]:
    """Return the distinct paths after t steps."""
    return sorted({_path(step_size, radius, t) for radius in moving})
