"""Benchmark of purification: `SOAP`, which shares work between radii, against Algorithm 2 radius by radius."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from soap._runtime import devices
from soap._runtime.isolation import frozen
from soap.auxiliary import JointModel, Purification
from soap.bench import reference
from soap.bench.comparison import Run, compare_paths, purifier_agreement
from soap.bench.counting import counting_losses
from soap.bench.floor import Rates, Work, cost_of
from soap.bench.inputs import BenchModel, bench_images
from soap.bench.results import FP32, OURS, PLAIN, BenchRow
from soap.bench.timing import Watch, silent
from soap.purifiers import SOAP
from soap.shapes import Tensor

ImagesAndRadii = tuple[Tensor, Tensor]
"""Purified images and the radius of each."""

RADIUS_TOLERANCE = 1e-6
"""Radii this close (relative) are equal."""

SWEEP_GRID_SIZES = (2, 3, 6, 11, 21, 41)
SWEEP_STEPS = (1, 2, 5, 10, 20)
SWEEP_BATCH_FACTOR = 4


@dataclass(frozen=True, kw_only=True)
class PurifyCase:
    """One point of a sweep; None means the model's own steps (T) or grid."""

    batch: int
    steps: int | None = None
    grid: tuple[float, ...] | None = None


def sweep_cases(own: Purification, batch: int) -> list[PurifyCase]:
    """Cases that vary one setting at a time: batches up to `batch`, then at `batch` the grid size, then T.

    Grids have equal steps over the model's own range.
    """
    sizes = [size for size in (SWEEP_BATCH_FACTOR**k for k in range(20)) if size < batch]
    largest = max(own.grid)
    grids = {count: tuple(largest * k / (count - 1) for k in range(count)) for count in SWEEP_GRID_SIZES}
    return [
        *(PurifyCase(batch=size) for size in (*sizes, batch)),
        *(PurifyCase(batch=batch, grid=grid) for count, grid in grids.items() if count != len(set(own.grid))),
        *(PurifyCase(batch=batch, steps=steps) for steps in SWEEP_STEPS if steps != own.steps),
    ]


def bench_purify(
    bench: BenchModel,
    rates: Rates,
    *,
    batch: int,
    device: torch.device,
    repeats: int,
    steps: int | None = None,
    grid: tuple[float, ...] | None = None,
    precision: str = "fp32",
    seed: int = 0,
    root: Path | None = None,
    watch: Watch = silent,
) -> BenchRow:
    """Purify one batch by min-aux; steps (T) and grid are the model's own unless given.

    With precision "bf16" both paths use bf16, and ours in fp32 is a third path.
    """
    model, (x, source) = bench.model, bench_images(bench, batch, device, seed=seed, root=root)
    settings = SOAP(model, steps=steps, grid=grid, precision=precision)
    gamma, T, radii = settings.step_size, settings.steps, settings.grid

    def ours(model: JointModel, precision: str = precision) -> Run[ImagesAndRadii]:
        purifier = SOAP(model, steps=T, grid=radii, precision=precision)

        def run() -> ImagesAndRadii:
            out = purifier(x)
            return out.x, out.eps

        return run

    def plain(model: JointModel) -> Run[ImagesAndRadii]:
        def run() -> ImagesAndRadii:
            with devices.autocast(device, precision):
                return reference.purify_min_aux(model, x, radii, gamma=gamma, T=T)

        return run

    paths = {OURS: ours, PLAIN: plain}
    if precision != "fp32":
        paths[FP32] = lambda model: ours(model, "fp32")
    return compare_paths(
        "purify",
        bench,
        paths,
        inputs=source,
        settings=settings,
        case={"batch": batch, "steps": T, "grid": len(radii), "precision": precision},
        counting=counting_losses,
        agreement=partial(purifier_agreement, model),
        work=lambda passes: least_work(model, x, radii, gamma=gamma, T=T),
        rates=rates,
        device=device,
        repeats=repeats,
        watch=watch,
    )


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


def least_work(model: JointModel, x: Tensor, grid: Sequence[float], *, gamma: float, T: int) -> Work:
    """The operations and bytes that the whole grid needs for the batch `x`, in T batched steps and a final loss."""
    gradients, losses = needed_points(grid, gamma=gamma, T=T)
    with frozen(model):
        cost = cost_of(lambda point: model.auxiliary.loss(model, point), model, x[:2].clone().requires_grad_())
    samples, passes = len(x), len(gradients)
    forward = cost.forwards(samples * (sum(gradients) + losses), passes + 1)
    return forward + cost.backwards(samples * sum(gradients), passes)
