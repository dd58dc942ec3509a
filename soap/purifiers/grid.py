"""Algorithm 2 for a whole grid of radii at once, with shared steps.

After t steps |delta| <= t * step_size, so a radius clips for the first time at the step where t * step_size exceeds it.
Until then all larger radii share one path. With T = 5 and a grid in multiples of step_size this takes 11 gradients per
image instead of 55, in 5 sequential batches, and 5 further losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

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

    plan = _plan(tuple(moving), step_size, steps)
    points_of: dict[float, list[Tensor]] = {radius: [x] * (1 if radius else steps + 1) for radius in radii}
    losses_seen: list[Tensor] = []

    def split_and_step(t: int, points: Tensor, gradients: Tensor) -> Tensor:
        """Copy the points [paths * batch, ...] to the paths of step t, each with its own radius, and take the step."""
        here, parents, path_of = plan[t]
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
        for radius, path in zip(moving, path_of, strict=True):
            points_of[radius].append(by_path[path])
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
    has_zero = radii[0] == 0
    return GridDescent(
        radii=torch.cat([x.new_full((1,), radius) for radius in radii]),
        iterates=tuple(map(tuple, points_of.values())),
        points=torch.stack([points[-1] for points in points_of.values()]),
        losses=torch.stack([loss_before] * has_zero + [losses[end] for end in plan[steps].path_of]),
        loss_before=loss_before,
    )


def max_paths(grid: Sequence[float], *, step_size: float, steps: int) -> int:
    """Return the largest number of paths at any step: the points that one image needs in memory at once."""
    plan = _plan(tuple(sorted({radius for radius in grid if radius > 0})), step_size, steps)
    return max(1, *(len(step.keys) for step in plan[1:]))


class _Paths(NamedTuple):
    """The distinct paths after a step: their keys, where each one was after the step before, and each radius's path."""

    keys: tuple[float, ...]
    parents: tuple[int, ...]
    path_of: tuple[int, ...]


@lru_cache(maxsize=1024)  # every call of a purifier needs it
def _plan(moving: tuple[float, ...], step_size: float, steps: int) -> tuple[_Paths, ...]:
    """Return the paths of the positive radii, which ascend, after 0 ... `steps` steps."""
    plan: list[_Paths] = []
    for t in range(steps + 1):
        key_of = [radius if radius < t * step_size * (1 - RADIUS_TOLERANCE) else UNCLIPPED for radius in moving]
        keys = sorted(set(key_of))
        parents = [plan[-1].path_of[key_of.index(key)] if plan else 0 for key in keys]
        plan.append(_Paths(tuple(keys), tuple(parents), tuple(map(keys.index, key_of))))
    return tuple(plan)
