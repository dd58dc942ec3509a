"""Purification: the shared walk of `SOAP` against Algorithm 2 for one radius after another."""

from collections.abc import Sequence
from pathlib import Path

import torch

from soap._runtime import devices
from soap._runtime.isolation import frozen
from soap.auxiliary import JointModel
from soap.bench import plain_walks
from soap.bench.agreement import purified_alike
from soap.bench.compare import Run, Watch, compare
from soap.bench.counting import counting_losses
from soap.bench.floor import Rates, Work, cost_of, floor
from soap.bench.row import FP32, OURS, PLAIN, BenchRow, provenance
from soap.bench.subject import Subject, images
from soap.purifiers import SOAP
from soap.shapes import Tensor

Pair = tuple[Tensor, Tensor]
"""Purified images and the radius of each."""

ROUNDING = 1e-6
"""Radii and reaches this close (relative) are the same."""


def bench_purify(
    subject: Subject,
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
    watch: Watch = lambda what, done, total: None,
) -> BenchRow:
    """Purify one batch by min-aux; steps (T) and grid are the model's own unless given.

    In bf16 both paths are, and ours in fp32 is a third to compare with.
    """
    model, given = subject.model, images(subject, batch, device, seed=seed, root=root)
    settings = SOAP(model, steps=steps, grid=grid, precision=precision)
    gamma, T, radii = settings.step_size, settings.steps, settings.grid

    def ours(model: JointModel, precision: str = precision) -> Run[Pair]:
        purifier = SOAP(model, steps=T, grid=radii, precision=precision)

        def run() -> Pair:
            out = purifier(given.x)
            return out.x, out.eps

        return run

    def plain(model: JointModel) -> Run[Pair]:
        def run() -> Pair:
            with devices.autocast(device, precision):
                return plain_walks.purify_min_aux(model, given.x, radii, gamma=gamma, T=T)

        return run

    paths = {OURS: ours, PLAIN: plain}
    if precision != "fp32":
        paths[FP32] = lambda model: ours(model, "fp32")
    done = compare(paths, model, counting_losses, images=batch, device=device, repeats=repeats, watch=watch)
    least = floor(least_work(model, given.x, radii, gamma=gamma, T=T), rates)
    return BenchRow(
        what="purify",
        model=model.name,
        weights=subject.weights,
        inputs=given.source,
        settings=repr(settings),
        case={"batch": batch, "steps": T, "grid": len(radii), "precision": precision},
        paths=done.paths,
        agreement={
            other: purified_alike(model, done.results[OURS], done.results[other]) for other in paths if other != OURS
        },
        floor=least,
        share=least.seconds / done.paths[OURS].seconds.median,
        notes=subject.notes,
        provenance=provenance(device),
    )


def needed(grid: Sequence[float], *, gamma: float, T: int) -> tuple[list[int], int]:
    """How many distinct points need a gradient at each of the T steps, and how many need a further loss at the end.

    After t steps a radius eps has been felt only if eps < t * gamma; all others are at one point. The loss at eps = 0
    comes with the first gradient.
    """
    moving = [radius for radius in grid if radius > 0]
    if not moving:
        return [], 1

    def points(t: int) -> int:
        reach = t * gamma
        bent = {radius for radius in moving if radius < reach * (1 - ROUNDING)}
        return len(bent) + any(radius >= reach * (1 - ROUNDING) for radius in moving)

    return [1, *(points(t) for t in range(1, T))], points(T)


def least_work(model: JointModel, x: Tensor, grid: Sequence[float], *, gamma: float, T: int) -> Work:
    """The operations and bytes that the whole grid needs for the batch `x`, in T batched steps and a last look."""
    gradients, losses = needed(grid, gamma=gamma, T=T)
    with frozen(model):
        cost = cost_of(lambda point: model.auxiliary.loss(model, point), model, x[:2].clone().requires_grad_())
    rows, passes = len(x), len(gradients)
    ahead = cost.forwards(rows * (sum(gradients) + losses), passes + 1)
    return ahead + cost.backwards(rows * sum(gradients), passes)
