"""Benchmark of training: epochs of `soap.training.train`, alone or alternating with the reference loop."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import recipes, validate
from soap._runtime.isolation import preserved_random_state
from soap.bench.counting import Meter, PassCount, counting_features
from soap.bench.floor import Rates, floor_of
from soap.bench.inputs import epoch_images, training_set
from soap.bench.results import OURS, PLAIN, BenchRow, path_metrics, provenance
from soap.bench.timing import Watch, seconds_of, spread, with_peak_memory
from soap.bench.training_run import BenchTraining, EpochClock
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import Recipe

MIN_STEPS = 3
"""An epoch can be shortened to this many steps: the first and the last are not typical."""

CHECKPOINT_NOTE = "Our epoch includes what it writes; checkpoints are at least ten seconds apart."

UNTIMED_EPOCHS = 2
"""The first warms up; the last, which would also write the weights, never starts."""

COMPARED_STEPS = 5
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
    """Time `epochs` epochs of each loop after one that warms up.

    steps: time only so many steps (3 or more) of each epoch and scale them. alone: only our loop, without counting
    passes. compiled: torch.compile in our loop; the reference is never compiled.
    """
    if steps is not None:
        validate.at_least("steps", steps, MIN_STEPS)
    schedule = replace(recipe.training, epochs=epochs + UNTIMED_EPOCHS, holdout=0, batch=batch or recipe.training.batch)
    model = recipes.build(recipe)
    limit = None if steps is None else steps * schedule.batch
    data = training_set(recipe, model, limit, root).to(device)
    plan = BenchTraining(recipe=replace(recipe, training=schedule), model=model.to(device), precision=precision)
    if len(data) < schedule.batch:
        raise InputError(
            f"the batch size is {schedule.batch}, but there are {len(data)} training images; use a smaller --batch."
        )
    measured, whole = len(data) // schedule.batch, epoch_images(recipe, root) // schedule.batch
    epoch = _Epochs(plan=plan, data=data, count=epochs, measured=measured, whole=whole, compiled=compiled, watch=watch)
    with preserved_random_state():
        found = _measure_ours(epoch) if alone else _measure_both(epoch)
    images = whole * schedule.batch
    seconds = {name: spread(values) for name, values in found.seconds.items()}
    paths = path_metrics(seconds, images, found.passes, found.peaks)
    floor = floor_of(plan.least_work(data, steps=whole), rates)
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
        floor=floor,
        share=floor.seconds / paths[OURS].seconds.median,
        notes=(*([scaled] if measured != whole else []), CHECKPOINT_NOTE),
        provenance=provenance(device),
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """By path: seconds of each epoch, passes and peak memory; and how the losses agree."""

    seconds: dict[str, list[float]]
    passes: dict[str, PassCount]
    peaks: dict[str, int | None]
    agreement: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """The epochs to time: `count` after one that warms up, each of `measured` steps, scaled to `whole` steps."""

    plan: BenchTraining
    data: Dataset
    count: int
    measured: int
    whole: int
    compiled: bool
    watch: Watch

    def time(self, between: Callable[[], None] = lambda: None) -> tuple[list[float], list[float]]:
        """Seconds of each whole epoch of our loop but the first, and the mean losses of all epochs.

        The loop runs once for all epochs, since it may compile or record graphs. After each epoch `between` is called,
        which is not timed.
        """
        clock = EpochClock(self.data.x.device, self.measured, self.whole)
        seconds: list[float] = []

        def after_step() -> bool:
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
            epochs=self.count + UNTIMED_EPOCHS,
            compiled=self.compiled,
            watch=lambda progress: clock.reached(progress.step),
            stop=after_step,
        )
        if len(losses) != self.count + 1:
            raise RuntimeError(f"the training loop ran {len(losses)} epochs, expected {self.count + 1}")
        return seconds[1:], losses


def _measure_ours(epochs: _Epochs) -> _Measured:
    """Measure our loop only, with the peak memory of its timed run."""
    (seconds, _), peak = with_peak_memory(epochs.time, epochs.data.x.device)
    return _Measured(seconds={OURS: seconds}, passes={}, peaks={OURS: peak}, agreement={})


def _measure_both(epochs: _Epochs) -> _Measured:
    """Measure both loops alternately, after short runs of both for passes, memory and first losses."""
    plan, data = epochs.plan, epochs.data
    epochs.watch("counting", 0, epochs.count)
    first, peaks = _first_steps(plan, data)
    passes = _count_passes(plan, data)
    plain = plan.plain(copy.deepcopy(plan.model), data, epochs=epochs.count + UNTIMED_EPOCHS)
    plain_seconds: list[float] = []
    losses: list[list[float]] = []

    def plain_epoch() -> None:
        taken = seconds_of(lambda: losses.append(plain.epoch()), data.x.device)
        plain_seconds.append(taken * epochs.whole / epochs.measured)

    seconds, means = epochs.time(between=plain_epoch)
    first |= {"epoch_loss_ours": means[0], "epoch_loss_plain": sum(losses[0]) / len(losses[0])}
    return _Measured(
        seconds={OURS: seconds, PLAIN: plain_seconds[1:]}, passes=passes, peaks=peaks, agreement={PLAIN: first}
    )


def _first_steps(plan: BenchTraining, data: Dataset) -> tuple[dict[str, float], dict[str, int | None]]:
    """Mean joint loss of both loops over the first steps of a short run, and the peak memory of each."""
    short = data.take(min(len(data), COMPARED_STEPS * plan.recipe.training.batch))
    device = data.x.device
    one, two = copy.deepcopy(plan.model), copy.deepcopy(plan.model)
    ours, ours_peak = with_peak_memory(lambda: plan.ours(one, short, epochs=1), device)
    plain, plain_peak = with_peak_memory(lambda: plan.plain(two, short, epochs=1).epoch(), device)
    losses = {
        "first_steps": float(len(plain)),
        "first_loss_ours": ours[0],
        "first_loss_plain": sum(plain) / len(plain),
    }
    return losses, {OURS: ours_peak, PLAIN: plain_peak}


def _count_passes(plan: BenchTraining, data: Dataset) -> dict[str, PassCount]:
    """PassCount of one step on two images through the encoder, views and attack included; counted on the CPU."""
    plan = replace(plan, model=copy.deepcopy(plan.model).cpu(), precision="fp32")
    two = data.take(min(2, len(data))).to("cpu")
    meters = {name: Meter(two.x.device) for name in (OURS, PLAIN)}
    plan.ours(counting_features(plan.model, meters[OURS]), two, epochs=1)
    plan.plain(counting_features(plan.model, meters[PLAIN]), two, epochs=1).epoch()
    return {name: meter.passes(len(two)) for name, meter in meters.items()}
