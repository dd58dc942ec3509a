"""Benchmark of training: epochs of `soap.training.train`, alone or alternating with the reference loop."""

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import recipes, training, validate
from soap._runtime import devices
from soap._runtime.isolation import frozen, preserved_random_state
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointModel
from soap.bench.counting import Meter, PassCount, counting_features
from soap.bench.floor import Rates, Work, cost_of, floor_of
from soap.bench.inputs import epoch_images, training_set
from soap.bench.reference import PlainTraining, joint_loss
from soap.bench.results import OURS, PLAIN, BenchRow, path_metrics, provenance
from soap.bench.timing import Watch, seconds_of, silent, spread, synchronise, with_peak_memory
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import Recipe
from soap.recipes.making import compile_errors
from soap.training import Progress

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
    watch: Watch = silent,
) -> BenchRow:
    """Time `epochs` epochs of each loop after one that warms up.

    steps: time only so many steps (3 or more) of each epoch and scale them. alone: only our loop, without counting
    passes. compiled: torch.compile in our loop; the reference is never compiled.
    """
    if steps is not None:
        validate.at_least("steps", steps, MIN_STEPS)
    batch = batch or recipe.training.batch
    recipe = replace(recipe, training=replace(recipe.training, epochs=epochs + UNTIMED_EPOCHS, holdout=0, batch=batch))
    model = recipes.build(recipe)
    data = training_set(recipe, model, None if steps is None else steps * batch, root).to(device)
    if len(data) < batch:
        raise InputError(
            f"the batch size is {batch}, but there are {len(data)} training images; use a smaller --batch."
        )
    measured, whole = len(data) // batch, epoch_images(recipe, root) // batch
    clock = EpochClock(device, measured, whole)
    plan = BenchTraining(recipe=recipe, model=model.to(device), data=data, precision=precision)
    passes: dict[str, PassCount] = {}
    agreement: dict[str, dict[str, float]] = {}
    with preserved_random_state():
        if alone:
            run = lambda: plan.time_epochs(epochs, clock, compiled=compiled, watch=watch)  # noqa: E731
            (ours, _), peak = with_peak_memory(run, device)
            seconds, peaks = {OURS: spread(ours)}, {OURS: peak}
        else:
            watch("counting", 0, epochs)
            agreement[PLAIN], peaks = plan.first_steps()
            passes = plan.count_passes()
            plain = plan.plain(copy.deepcopy(plan.model))
            times: list[float] = []
            losses: list[list[float]] = []

            def plain_epoch() -> None:
                times.append(seconds_of(lambda: losses.append(plain.epoch()), device) * whole / measured)

            ours, means = plan.time_epochs(epochs, clock, compiled=compiled, watch=watch, between=plain_epoch)
            seconds = {OURS: spread(ours), PLAIN: spread(times[1:])}
            agreement[PLAIN] |= {
                "epoch_loss_ours": means[0],
                "epoch_loss_plain": sum(losses[0]) / len(losses[0]),
            }
    scaled = f"{measured} steps were timed and scaled to the {whole} of an epoch."
    return BenchRow(
        what="train",
        model=recipe.name,
        weights=f"random, seed {recipe.training.seed}",
        inputs=f"{data.name}/{data.split}",
        settings=f"{recipe.training!r}, attack={recipe.adversarial!r}",
        case={
            "batch": batch,
            "steps": measured,
            "epoch_steps": whole,
            "precision": precision,
            "compiled": str(compiled).lower(),
        },
        paths=path_metrics(seconds, whole * batch, passes, peaks),
        agreement=agreement,
        floor=floor_of(plan.least_work(whole), rates),
        notes=(*([scaled] if measured != whole else []), CHECKPOINT_NOTE),
        provenance=provenance(device),
    )


class EpochClock:
    """Seconds of each epoch of our loop, from its progress callback and its stop callback, called once per step.

    If an epoch is shortened to `measured` steps, the time of a step is scaled to the `whole` epoch; work done once per
    epoch (the checkpoint) is added once.
    """

    def __init__(self, device: torch.device, measured: int, whole: int) -> None:
        self.device, self.measured, self.whole = device, measured, whole
        self.step = self.epochs = 0

    def start(self) -> None:
        """Begin an epoch."""
        self.ticks = 0
        self.began = self.first = self.last = self._now()

    def tick(self) -> float | None:
        """Record one step; returns the seconds of the whole epoch after its last step, else None.

        `step` is the number of steps since training began, which the progress callback sets.
        """
        self.ticks += 1
        if self.measured != self.whole and self.ticks == 1:
            self.first = self._now()
        if self.measured != self.whole and self.ticks == self.measured - 1:
            self.last = self._now()
        if self.step != (self.epochs + 1) * self.measured:
            return None
        self.epochs += 1
        total = self._now() - self.began
        if self.measured == self.whole:
            return total
        if self.ticks != self.measured:
            raise InputError("the training loop does not report each step; omit --steps.")
        return total + (self.whole - self.measured) * (self.last - self.first) / (self.measured - 2)

    def _now(self) -> float:
        synchronise(self.device)
        return time.perf_counter()


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
        self,
        count: int,
        clock: EpochClock,
        *,
        compiled: bool,
        watch: Watch,
        between: Callable[[], None] = lambda: None,
    ) -> tuple[list[float], list[float]]:
        """Seconds of `count` epochs of our loop after the first, and the mean losses of all epochs.

        The loop runs once for all epochs, since it may compile or record graphs. After each epoch `between` is called,
        which is not timed.
        """
        seconds: list[float] = []

        def after_step() -> bool:
            taken = clock.tick()
            if taken is not None:
                seconds.append(taken)
                between()
                watch("timing", len(seconds), count + 1)
                clock.start()
            return len(seconds) == count + 1

        def reached(progress: Progress) -> None:
            clock.step = progress.step

        model = copy.deepcopy(self.model)
        clock.start()
        losses = self.ours(model, compiled=compiled, watch=reached, stop=after_step)
        if len(losses) != count + 1:
            raise RuntimeError(f"the training loop ran {len(losses)} epochs, expected {count + 1}")
        return seconds[1:], losses

    def first_steps(self) -> tuple[dict[str, float], dict[str, int | None]]:
        """Mean joint loss of both loops over the first steps of a short run, and the peak memory of each."""
        short, device = self._one_epoch(COMPARED_STEPS * self.recipe.training.batch), self.data.x.device
        one, two = copy.deepcopy(self.model), copy.deepcopy(self.model)
        ours, our_peak = with_peak_memory(lambda: short.ours(one), device)
        plain, plain_peak = with_peak_memory(lambda: short.plain(two).epoch(), device)
        mean = sum(plain) / len(plain)
        losses = {"first_steps": float(len(plain)), "first_loss_ours": ours[0], "first_loss_plain": mean}
        return losses, {OURS: our_peak, PLAIN: plain_peak}

    def count_passes(self) -> dict[str, PassCount]:
        """Passes of one step on two images through the encoder, views and attack included; counted on the CPU."""
        two = self._one_epoch(2)
        two = replace(two, model=copy.deepcopy(self.model).cpu(), data=two.data.to("cpu"), precision="fp32")
        meters = {name: Meter(two.data.x.device) for name in (OURS, PLAIN)}
        two.ours(counting_features(two.model, meters[OURS]))
        two.plain(counting_features(two.model, meters[PLAIN])).epoch()
        return {name: meter.passes(len(two.data)) for name, meter in meters.items()}

    def _one_epoch(self, images: int) -> "BenchTraining":
        """The same for one epoch of the first images."""
        recipe = replace(self.recipe, training=replace(self.recipe.training, epochs=1))
        return replace(self, recipe=recipe, data=self.data.take(min(images, len(self.data))))

    def least_work(self, steps: int) -> Work:
        """The work of one epoch: each image forward and backward through the joint loss, the attack, the optimiser.

        The backward pass writes the gradient; the optimiser reads weight, gradient and momentum and writes weight and
        momentum.
        """
        model, schedule, attack = copy.deepcopy(self.model), self.recipe.training, self.recipe.adversarial
        x, y = self.data.x[:2], self.data.y[:2]
        samples = steps * schedule.batch
        generator = torch.Generator(x.device).manual_seed(schedule.seed)
        with devices.autocast(x.device, self.precision):
            model.train()
            cost = cost_of(lambda x: joint_loss(model, x, y, generator), model, x)
        work = cost.gradients(samples, steps) + Work(operations=0, bytes=6 * cost.weights * steps)
        gradients = attack.steps if isinstance(attack, PGD) else 1 if isinstance(attack, FGSM) else 0
        if gradients:
            with frozen(model):
                attack_cost = cost_of(model, model, x.clone().requires_grad_())
            work += attack_cost.gradients(samples * gradients, steps * gradients)
        return work
