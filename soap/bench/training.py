"""Benchmark of training: epochs of `soap.training.train`, alone or alternating with the reference loop."""

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import recipes, training
from soap._runtime import devices
from soap._runtime.isolation import preserved_random_state
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointModel
from soap.bench.inputs import BenchSetup, epoch_images, training_set
from soap.bench.measures import (
    Meter,
    PassCount,
    Watch,
    counting_features,
    gradient_operations,
    operations_of,
    seconds_of,
    synchronise,
    with_peak_memory,
)
from soap.bench.reference import PlainTraining, joint_loss
from soap.bench.results import OURS, PLAIN, BenchRow, bench_row, path_metrics
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import Recipe
from soap.recipes.building import compile_errors
from soap.training import Progress

CHECKPOINT_NOTE = "Our epoch includes what it writes; checkpoints are at least ten seconds apart."

UNTIMED_EPOCHS = 2
"""The first warms up; the last, which would also write the weights, never starts."""

COMPARED_STEPS = 5
"""Steps over which the losses of both loops are compared."""


def bench_train(
    setup: BenchSetup,
    recipe: Recipe,
    *,
    epochs: int,
    alone: bool = False,
    batch_size: int | None = None,
    steps: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
) -> BenchRow:
    """Time `epochs` epochs of each loop after one that warms up.

    steps: time only so many steps of each epoch, and scale their time to the whole epoch. alone: only our loop, without
    counting passes. compiled: torch.compile in our loop; the reference is never compiled.
    """
    device, batch_size = setup.device, batch_size or recipe.training.batch_size
    recipe = replace(
        recipe, training=replace(recipe.training, epochs=epochs + UNTIMED_EPOCHS, holdout=0, batch_size=batch_size)
    )
    model = recipes.build(recipe)
    data = training_set(recipe, model, None if steps is None else steps * batch_size, setup.root).to(device)
    if len(data) < batch_size:
        raise InputError(
            f"the batch size is {batch_size}, but there are {len(data)} training images; use a smaller --batch-size."
        )
    measured, whole = len(data) // batch_size, epoch_images(recipe, setup.root) // batch_size
    plan = BenchTraining(recipe=recipe, model=model.to(device), data=data, precision=precision)
    passes: dict[str, PassCount] = {}
    agreement: dict[str, dict[str, float]] = {}
    plain_seconds: list[float] = []
    with preserved_random_state():
        if alone:
            run = lambda: plan.time_epochs(epochs, measured, compiled, setup.watch)  # noqa: E731
            seconds, peak = with_peak_memory(run, device)
            peaks = {OURS: peak}
        else:
            setup.watch("counting", 0, epochs)
            agreement[PLAIN], peaks = plan.first_steps()
            passes = plan.count_passes()
            plain = plan.plain(copy.deepcopy(plan.model))
            plain_epoch = lambda: plain_seconds.append(seconds_of(plain.epoch, device))  # noqa: E731
            seconds = plan.time_epochs(epochs, measured, compiled, setup.watch, between=plain_epoch)
    timed = {OURS: seconds, PLAIN: plain_seconds}
    epochs_scaled = {name: [one * whole / measured for one in values[1:]] for name, values in timed.items() if values}
    scaled = f"{measured} steps were timed and scaled to the {whole} of an epoch."
    return bench_row(
        what="train",
        model=recipe.name,
        weights=f"random, seed {recipe.training.seed}",
        inputs=f"{data.name}/{data.split}",
        settings=f"{recipe.training!r}, attack={recipe.adversarial!r}",
        case={
            "batch_size": batch_size,
            "steps": measured,
            "epoch_steps": whole,
            "precision": precision,
            "compiled": str(compiled).lower(),
        },
        paths=path_metrics(epochs_scaled, whole * batch_size, passes, peaks),
        agreement=agreement,
        operations=plan.image_operations() * whole * batch_size,
        rate=setup.rate,
        device=device,
        notes=[*([scaled] if measured != whole else []), CHECKPOINT_NOTE],
    )


@dataclass(frozen=True, kw_only=True)
class BenchTraining:
    """What both loops train: copies of one newly initialised model, by one recipe, on the same data."""

    recipe: Recipe
    model: JointModel
    data: Dataset
    precision: str

    def ours(
        self,
        model: JointModel,
        *,
        compiled: bool = False,
        watch: Callable[[Progress], None] = lambda progress: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[float]:
        """Train `model` with our loop; the mean joint loss of each epoch."""
        if compiled:  # shapes of a model measured before would make this one's dynamic and slower
            torch.compiler.reset()
        with compile_errors(compiled), tempfile.TemporaryDirectory(prefix="soap-bench-") as folder:
            done = training.train(
                model,
                self.data,
                self.recipe.training,
                out=Path(folder),
                attack=self.recipe.adversarial,
                device=self.data.x.device,
                precision=self.precision,
                compiled=compiled,
                watch=watch,
                stop=stop,
            )
        alpha = model.auxiliary.alpha if model.purifiable else 0.0
        return [row["classification"] + alpha * row["auxiliary"] for row in done.history]

    def plain(self, model: JointModel) -> PlainTraining:
        """The reference loop, not started."""
        schedule, attack = self.recipe.training, self.recipe.adversarial
        return PlainTraining(model, self.data, schedule, attack=attack, precision=self.precision)

    def time_epochs(
        self, count: int, steps: int, compiled: bool, watch: Watch, between: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Seconds of the first 1 + `count` epochs of `steps` steps of our loop.

        The loop runs once for all epochs, since it may compile or record graphs. It calls `stop` after each step, where
        the clock is read at the end of an epoch, and `between` runs untimed.
        """
        seconds: list[float] = []
        reached, began = 0, self._now()

        def at(progress: Progress) -> None:
            nonlocal reached
            reached = progress.step

        def stop() -> bool:
            nonlocal began
            if reached == (len(seconds) + 1) * steps:
                seconds.append(self._now() - began)
                between()
                watch("timing", len(seconds), count + 1)
                began = self._now()
            return len(seconds) == count + 1

        self.ours(copy.deepcopy(self.model), compiled=compiled, watch=at, stop=stop)
        return seconds

    def first_steps(self) -> tuple[dict[str, float], dict[str, int | None]]:
        """Mean joint loss of both loops over the first steps of a short run, and the peak memory of each."""
        short, device = self._one_epoch(COMPARED_STEPS * self.recipe.training.batch_size), self.data.x.device
        one, two = copy.deepcopy(self.model), copy.deepcopy(self.model)
        ours, our_peak = with_peak_memory(lambda: short.ours(one), device)
        plain, plain_peak = with_peak_memory(lambda: short.plain(two).epoch(), device)
        losses = {"first_steps": float(len(plain)), "first_loss_ours": ours[0]}
        return {**losses, "first_loss_plain": sum(plain) / len(plain)}, {OURS: our_peak, PLAIN: plain_peak}

    def count_passes(self) -> dict[str, PassCount]:
        """Passes of one step on two images through the encoder, views and attack included; counted on the CPU."""
        two = self._one_epoch(2)
        two = replace(two, model=copy.deepcopy(self.model).cpu(), data=two.data.to("cpu"), precision="fp32")
        meters = {name: Meter(two.data.x.device) for name in (OURS, PLAIN)}
        two.ours(counting_features(two.model, meters[OURS]))
        two.plain(counting_features(two.model, meters[PLAIN])).epoch()
        return {name: meter.passes(len(two.data)) for name, meter in meters.items()}

    def image_operations(self) -> float:
        """The operations of one image: forward and backward through the joint loss, and the attack."""
        model, schedule, attack = copy.deepcopy(self.model), self.recipe.training, self.recipe.adversarial
        x, y = self.data.x[:2], self.data.y[:2]
        generator = torch.Generator(x.device).manual_seed(schedule.seed)
        with devices.autocast(x.device, self.precision):
            model.train()
            total = sum(operations_of(lambda x: joint_loss(model, x, y, generator), x))
        gradients = attack.steps if isinstance(attack, PGD) else 1 if isinstance(attack, FGSM) else 0
        return total + gradients * sum(gradient_operations(model, model, x)) if gradients else total

    def _one_epoch(self, images: int) -> "BenchTraining":
        """The same for one epoch of the first images."""
        recipe = replace(self.recipe, training=replace(self.recipe.training, epochs=1))
        return replace(self, recipe=recipe, data=self.data.take(min(images, len(self.data))))

    def _now(self) -> float:
        synchronise(self.data.x.device)
        return time.perf_counter()
