"""One training run for a benchmark, with our loop or the reference: epoch times and least work."""

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import training
from soap._runtime import devices
from soap._runtime.isolation import frozen
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointModel
from soap.bench.floor import Work, cost_of
from soap.bench.reference import PlainTraining, joint_loss
from soap.bench.timing import synchronise
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import Recipe
from soap.recipes.making import compile_errors
from soap.training import Progress


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

    def reached(self, step: int) -> None:
        """Record the number of steps since training began, from the progress callback."""
        self.step = step

    def tick(self) -> float | None:
        """Record one step; returns the seconds of the whole epoch after its last step, else None."""
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
        step_seconds = (self.last - self.first) / (self.measured - 2)
        return total + (self.whole - self.measured) * step_seconds

    def _now(self) -> float:
        synchronise(self.device)
        return time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class BenchTraining:
    """What both loops train: copies of one newly initialised model, by one recipe, in one precision."""

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
        """Train `model` with our loop; the mean joint loss of each epoch."""
        if compiled:  # shapes of a model measured before would make this one's dynamic and slower
            torch.compiler.reset()
        with compile_errors(compiled), tempfile.TemporaryDirectory(prefix="soap-bench-") as folder:
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
        """The reference loop, not started."""
        schedule = replace(self.recipe.training, epochs=epochs)
        return PlainTraining(model, data, schedule, attack=self.recipe.adversarial, precision=self.precision)

    def least_work(self, data: Dataset, *, steps: int) -> Work:
        """The work of one epoch: each image forward and backward through the joint loss, the attack, the optimiser.

        The backward pass writes the gradient; the optimiser reads weight, gradient and momentum and writes weight and
        momentum.
        """
        model, schedule, attack = copy.deepcopy(self.model), self.recipe.training, self.recipe.adversarial
        x, y = data.x[:2], data.y[:2]
        samples = steps * schedule.batch
        generator = torch.Generator(x.device).manual_seed(schedule.seed)
        with devices.autocast(x.device, self.precision):
            model.train()
            cost = cost_of(lambda x: joint_loss(model, x, y, generator), model, x)
        work = cost.forwards(samples, steps) + cost.backwards(samples, steps)
        work += Work(operations=0, bytes=6 * cost.weights * steps)
        gradients = attack.steps if isinstance(attack, PGD) else 1 if isinstance(attack, FGSM) else 0
        if gradients:
            with frozen(model):
                attack_cost = cost_of(model, model, x.clone().requires_grad_())
            work += attack_cost.forwards(samples * gradients, steps * gradients)
            work += attack_cost.backwards(samples * gradients, steps * gradients)
        return work
