"""Training: an epoch of `soap.training.train` against an epoch of an ordinary loop, in turns."""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import engine, recipes, training, validate
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointModel
from soap.bench.compare import Watch
from soap.bench.counting import Meter, Passes, counting_features
from soap.bench.epoch_clock import EpochClock
from soap.bench.floor import Rates, Work, cost_of, floor
from soap.bench.memory import with_peak
from soap.bench.plain_training import PlainTraining, joint_loss
from soap.bench.row import OURS, PLAIN, BenchRow, figures, provenance
from soap.bench.subject import epoch_images, training_set
from soap.bench.timing import seconds_of, spread
from soap.data import Dataset
from soap.errors import InputError
from soap.isolation import borrowed, same_random_state
from soap.recipes import Recipe
from soap.recipes.making import compiling
from soap.training import Progress

LEAST = 3
"""Steps that an epoch can be shortened to: the first and the last are not typical."""

WRITES = "Our epoch includes what it writes; checkpoints are at least ten seconds apart."

FIRST = 5
"""Steps over which the losses of both loops are compared."""


def bench_train(
    recipe: Recipe,
    rates: Rates,
    *,
    device: torch.device,
    epochs: int,
    batch: int | None = None,
    steps: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    root: Path | None = None,
    watch: Watch = lambda what, done, total: None,
) -> BenchRow:
    """Time `epochs` epochs of each loop after one that warms up; with `steps` (3 or more), so many stand for an epoch.

    compiled: torch.compile in our loop; the plain one stays as it is.
    """
    if steps is not None:
        validate.at_least("steps", steps, LEAST)
    schedule = replace(recipe.training, epochs=epochs + 1, holdout=0, batch=batch or recipe.training.batch)
    model = recipes.build(recipe)
    limit = None if steps is None else steps * schedule.batch
    data = training_set(recipe, model, limit, root).to(device)
    plan = _Plan(recipe=replace(recipe, training=schedule), model=model.to(device), precision=precision)
    if len(data) < schedule.batch:
        raise InputError(f"the batch is {schedule.batch} but there are only {len(data)} training images.")
    measured, whole = len(data) // schedule.batch, epoch_images(recipe, root) // schedule.batch
    with same_random_state():
        watch("counting", 0, epochs)
        first, peaks = _first_steps(plan, data)
        passes = _count(plan, data)
        seconds, losses = _in_turns(plan, data, epochs, whole, compiled, watch)
    images = whole * schedule.batch
    paths = figures({name: spread(values) for name, values in seconds.items()}, images, passes, peaks)
    least = floor(least_work(plan, data, steps=whole), rates)
    scaled = f"{measured} steps were timed and scaled to the {whole} of an epoch."
    return BenchRow(
        what="train",
        model=recipe.name,
        weights=f"random, seed {schedule.seed}",
        inputs=f"{data.name}/{data.split}",
        settings=f"{schedule!r}, attack={recipe.adversarial!r}",
        case={
            "batch": schedule.batch,
            "steps": measured,
            "epoch_steps": whole,
            "precision": precision,
            "compiled": str(compiled).lower(),
        },
        paths=paths,
        agreement={PLAIN: {**first, **losses}},
        floor=least,
        share=least.seconds / paths[OURS].seconds.median,
        notes=(*([scaled] if measured != whole else []), WRITES),
        provenance=provenance(device),
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What both loops train: copies of one freshly drawn model, by one recipe, in one precision."""

    recipe: Recipe
    model: JointModel
    precision: str

    def ours(
        self,
        model: JointModel,
        data: Dataset,
        *,
        epochs: int,
        compiled: bool = False,
        watch: Callable[[Progress], None] = lambda progress: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[float]:
        """Train `model`; the mean joint loss of every epoch."""
        with compiling(compiled), tempfile.TemporaryDirectory(prefix="soap-bench-") as folder:
            done = training.train(
                model,
                data,
                replace(self.recipe.training, epochs=epochs),
                out=Path(folder),
                attack=self.recipe.adversarial,
                device=data.x.device,
                precision=self.precision,
                compiled=compiled,
                watch=watch,
                stop=stop,
            )
        alpha = model.auxiliary.alpha if model.purifiable else 0.0
        return [row["classification"] + alpha * row["auxiliary"] for row in done.history]

    def plain(self, model: JointModel, data: Dataset, *, epochs: int) -> PlainTraining:
        """The ordinary loop, not started."""
        schedule = replace(self.recipe.training, epochs=epochs)
        return PlainTraining(model, data, schedule, attack=self.recipe.adversarial, precision=self.precision)


def _first_steps(plan: _Plan, data: Dataset) -> tuple[dict[str, float], dict[str, int | None]]:
    """Mean joint loss of both loops over the first steps of a short run, and the peak memory of each."""
    short = data.take(min(len(data), FIRST * plan.recipe.training.batch))
    device = data.x.device
    one, two = copy.deepcopy(plan.model), copy.deepcopy(plan.model)
    ours, ours_peak = with_peak(lambda: plan.ours(one, short, epochs=1), device)
    plain, plain_peak = with_peak(lambda: plan.plain(two, short, epochs=1).epoch(), device)
    losses = {
        "first_steps": float(len(plain)),
        "first_loss_ours": ours[0],
        "first_loss_plain": sum(plain) / len(plain),
    }
    return losses, {OURS: ours_peak, PLAIN: plain_peak}


def _count(plan: _Plan, data: Dataset) -> dict[str, Passes]:
    """What one step on two images passes through the encoder, views and attack included; the CPU counts as well."""
    plan = replace(plan, model=copy.deepcopy(plan.model).cpu(), precision="fp32")
    two = data.take(min(2, len(data))).to("cpu")
    meters = {name: Meter(two.x.device) for name in (OURS, PLAIN)}
    plan.ours(counting_features(plan.model, meters[OURS]), two, epochs=1)
    plan.plain(counting_features(plan.model, meters[PLAIN]), two, epochs=1).epoch()
    return {name: meter.passes(len(two)) for name, meter in meters.items()}


def _in_turns(
    plan: _Plan, data: Dataset, epochs: int, whole: int, compiled: bool, watch: Watch
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of every whole epoch after the first, ours and plain in turns, and the mean loss of each loop's first.

    Our loop runs once for all epochs, since it may compile or record; whenever it has finished one and asks whether to
    stop, the plain loop has its turn.
    """
    plain = plan.plain(copy.deepcopy(plan.model), data, epochs=epochs + 1)
    clock = EpochClock(data.x.device, plain.steps_per_epoch, whole)
    seconds: dict[str, list[float]] = {OURS: [], PLAIN: []}
    losses: list[list[float]] = []

    def take_turns() -> bool:
        ours = clock.tick()
        if ours is not None:
            seconds[OURS].append(ours)
            taken = seconds_of(lambda: losses.append(plain.epoch()), data.x.device)
            seconds[PLAIN].append(taken * whole / plain.steps_per_epoch)
            watch("timing", len(losses), epochs + 1)
            clock.start()
        return False

    model = copy.deepcopy(plan.model)
    clock.start()
    means = plan.ours(
        model,
        data,
        epochs=epochs + 1,
        compiled=compiled,
        watch=lambda progress: clock.reached(progress.step),
        stop=take_turns,
    )
    if len(losses) != epochs + 1:
        raise RuntimeError(f"the training loop reported {len(losses)} of {epochs + 1} epochs")
    first = {"epoch_loss_ours": means[0], "epoch_loss_plain": sum(losses[0]) / len(losses[0])}
    return {name: values[1:] for name, values in seconds.items()}, first


def least_work(plan: _Plan, data: Dataset, *, steps: int) -> Work:
    """One epoch: every image once forward and back through the joint loss, the attack's gradients, the optimiser.

    The optimiser reads weight, gradient and momentum and writes weight and momentum, after backward wrote the gradient.
    """
    model, schedule, attack = copy.deepcopy(plan.model), plan.recipe.training, plan.recipe.adversarial
    x, y = data.x[:2], data.y[:2]
    rows = steps * schedule.batch
    generator = torch.Generator(x.device).manual_seed(schedule.seed)
    with engine.autocast(x.device, plan.precision):
        model.train()
        cost = cost_of(lambda x: joint_loss(model, x, y, generator), model, x)
    work = cost.forwards(rows, steps) + cost.backwards(rows, steps)
    work += Work(operations=0, bytes=6 * cost.weights * steps)
    gradients = attack.steps if isinstance(attack, PGD) else 1 if isinstance(attack, FGSM) else 0
    if gradients:
        with borrowed(model):
            walk = cost_of(model, model, x.clone().requires_grad_())
        work += walk.forwards(rows * gradients, steps * gradients)
        work += walk.backwards(rows * gradients, steps * gradients)
    return work
