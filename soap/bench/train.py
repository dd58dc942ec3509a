"""Training: an epoch of `soap.training.train`, against an epoch of an ordinary loop in turns or alone."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import recipes, validate
from soap._runtime.isolation import preserved_random_state
from soap.bench.compare import Watch
from soap.bench.counting import Meter, Passes, counting_features
from soap.bench.epoch_clock import EpochClock
from soap.bench.floor import Rates, floor
from soap.bench.memory import with_peak
from soap.bench.row import OURS, PLAIN, BenchRow, figures, provenance
from soap.bench.subject import epoch_images, training_set
from soap.bench.timing import seconds_of, spread
from soap.bench.training_plan import TrainingPlan
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import Recipe

LEAST = 3
"""Steps that an epoch can be shortened to: the first and the last are not typical."""

WRITES = "Our epoch includes what it writes; checkpoints are at least ten seconds apart."

AROUND = 2
"""Epochs beside the timed: the first warms up; the last, which would also write the weights, is never begun."""

FIRST = 5
"""Steps over which the losses of both loops are compared."""


def bench_train(
    recipe: Recipe,
    rates: Rates,
    *,
    device: torch.device,
    epochs: int,
    alone: bool = False,
    batch: int | None = None,
    steps: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    root: Path | None = None,
    watch: Watch = lambda what, done, total: None,
) -> BenchRow:
    """Time `epochs` epochs of each loop after one that warms up; with `steps` (3 or more), so many stand for an epoch.

    alone: our loop only; passes are not counted then. compiled: torch.compile in our loop; the plain one stays as it
    is.
    """
    if steps is not None:
        validate.at_least("steps", steps, LEAST)
    schedule = replace(recipe.training, epochs=epochs + AROUND, holdout=0, batch=batch or recipe.training.batch)
    model = recipes.build(recipe)
    limit = None if steps is None else steps * schedule.batch
    data = training_set(recipe, model, limit, root).to(device)
    plan = TrainingPlan(recipe=replace(recipe, training=schedule), model=model.to(device), precision=precision)
    if len(data) < schedule.batch:
        raise InputError(f"the batch is {schedule.batch} but there are only {len(data)} training images.")
    measured, whole = len(data) // schedule.batch, epoch_images(recipe, root) // schedule.batch
    epoch = _Epochs(plan=plan, data=data, count=epochs, measured=measured, whole=whole, compiled=compiled, watch=watch)
    with preserved_random_state():
        found = _alone(epoch) if alone else _beside_plain(epoch)
    images = whole * schedule.batch
    paths = figures({name: spread(values) for name, values in found.seconds.items()}, images, found.passes, found.peaks)
    least = floor(plan.least_work(data, steps=whole), rates)
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
        agreement=found.agreement,
        floor=least,
        share=least.seconds / paths[OURS].seconds.median,
        notes=(*([scaled] if measured != whole else []), WRITES),
        provenance=provenance(device),
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What was measured, by path: seconds of every epoch, passes, peak memory; and how the others agree with ours."""

    seconds: dict[str, list[float]]
    passes: dict[str, Passes]
    peaks: dict[str, int | None]
    agreement: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """The epochs to time: `count` after one that warms up, of `measured` steps that stand for `whole`."""

    plan: TrainingPlan
    data: Dataset
    count: int
    measured: int
    whole: int
    compiled: bool
    watch: Watch

    def time(self, between: Callable[[], None] = lambda: None) -> tuple[list[float], list[float]]:
        """Seconds of every whole epoch of our loop but the first, and the mean losses of all.

        The loop runs once for all epochs, since it may compile or record; whenever it has finished one and asks whether
        to stop, `between` has its turn, off the clock.
        """
        clock = EpochClock(self.data.x.device, self.measured, self.whole)
        seconds: list[float] = []

        def take_turns() -> bool:
            taken = clock.tick()
            if taken is not None:
                seconds.append(taken)
                between()
                self.watch("timing", len(seconds), self.count + 1)
                clock.start()
            return len(seconds) == self.count + 1

        model = copy.deepcopy(self.plan.model)
        clock.start()
        losses = self.plan.ours(
            model,
            self.data,
            epochs=self.count + AROUND,
            compiled=self.compiled,
            watch=lambda progress: clock.reached(progress.step),
            stop=take_turns,
        )
        if len(losses) != self.count + 1:
            raise RuntimeError(f"the training loop made {len(losses)} epochs, not {self.count + 1}")
        return seconds[1:], losses


def _alone(epochs: _Epochs) -> _Found:
    """Our loop only, with the peak memory of its timed run."""
    (seconds, _), peak = with_peak(epochs.time, epochs.data.x.device)
    return _Found(seconds={OURS: seconds}, passes={}, peaks={OURS: peak}, agreement={})


def _beside_plain(epochs: _Epochs) -> _Found:
    """Our loop and the plain one in turns, after short runs of both for passes, memory and first losses."""
    plan, data = epochs.plan, epochs.data
    epochs.watch("counting", 0, epochs.count)
    first, peaks = _first_steps(plan, data)
    passes = _count(plan, data)
    plain = plan.plain(copy.deepcopy(plan.model), data, epochs=epochs.count + AROUND)
    plain_seconds: list[float] = []
    losses: list[list[float]] = []

    def plain_turn() -> None:
        taken = seconds_of(lambda: losses.append(plain.epoch()), data.x.device)
        plain_seconds.append(taken * epochs.whole / epochs.measured)

    seconds, means = epochs.time(between=plain_turn)
    first |= {"epoch_loss_ours": means[0], "epoch_loss_plain": sum(losses[0]) / len(losses[0])}
    return _Found(
        seconds={OURS: seconds, PLAIN: plain_seconds[1:]}, passes=passes, peaks=peaks, agreement={PLAIN: first}
    )


def _first_steps(plan: TrainingPlan, data: Dataset) -> tuple[dict[str, float], dict[str, int | None]]:
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


def _count(plan: TrainingPlan, data: Dataset) -> dict[str, Passes]:
    """What one step on two images passes through the encoder, views and attack included; the CPU counts as well."""
    plan = replace(plan, model=copy.deepcopy(plan.model).cpu(), precision="fp32")
    two = data.take(min(2, len(data))).to("cpu")
    meters = {name: Meter(two.x.device) for name in (OURS, PLAIN)}
    plan.ours(counting_features(plan.model, meters[OURS]), two, epochs=1)
    plan.plain(counting_features(plan.model, meters[PLAIN]), two, epochs=1).epoch()
    return {name: meter.passes(len(two)) for name, meter in meters.items()}
