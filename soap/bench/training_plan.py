"""What a training benchmark trains: one model by one recipe, with our loop or the plain one; and the least it takes."""

import copy
import tempfile
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
from soap.bench.plain_training import PlainTraining, joint_loss
from soap.data import Dataset
from soap.recipes import Recipe
from soap.recipes.building import compile_errors
from soap.training import Progress


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What all loops train: copies of one freshly drawn model, by one recipe, in one precision."""

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
        if compiled:  # else the shapes of a model measured before would make this one's dynamic, and slower
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
        """The ordinary loop, not started."""
        schedule = replace(self.recipe.training, epochs=epochs)
        return PlainTraining(model, data, schedule, attack=self.recipe.adversarial, precision=self.precision)

    def least_work(self, data: Dataset, *, steps: int) -> Work:
        """One epoch: every image once forward and back through the joint loss, the attack's gradients, the optimiser.

        The optimiser reads weight, gradient and momentum and writes weight and momentum, after backward wrote the
        gradient.
        """
        model, schedule, attack = copy.deepcopy(self.model), self.recipe.training, self.recipe.adversarial
        x, y = data.x[:2], data.y[:2]
        rows = steps * schedule.batch
        generator = torch.Generator(x.device).manual_seed(schedule.seed)
        with devices.autocast(x.device, self.precision):
            model.train()
            cost = cost_of(lambda x: joint_loss(model, x, y, generator), model, x)
        work = cost.forwards(rows, steps) + cost.backwards(rows, steps)
        work += Work(operations=0, bytes=6 * cost.weights * steps)
        gradients = attack.steps if isinstance(attack, PGD) else 1 if isinstance(attack, FGSM) else 0
        if gradients:
            with frozen(model):
                walk = cost_of(model, model, x.clone().requires_grad_())
            work += walk.forwards(rows * gradients, steps * gradients)
            work += walk.backwards(rows * gradients, steps * gradients)
        return work
