"""Joint training of classifier and auxiliary task, and of plain and adversarially trained classifiers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from soap import validate
from soap._runtime import devices
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.errors import InputError
from soap.shapes import Tensor
from soap.training.joint_step import JointStep, NonFiniteError, PerturbsImages
from soap.training.loop import BaseProgress, Trained, TrainingLoop
from soap.training.schedule import Schedule

DIVERGENCE_ADVICE = "Lower lr or raise warmup_epochs"


@dataclass(frozen=True, kw_only=True)
class Progress(BaseProgress):
    """Progress of joint training; losses and accuracy are means over the epoch so far."""

    classification: float
    auxiliary: float
    accuracy: float
    holdout: float | None


def train(
    model: JointModel,
    data: Dataset,
    schedule: Schedule,
    *,
    out: Path,
    attack: PerturbsImages | None = None,
    device: torch.device | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    metadata: Mapping[str, str] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train `model` in place by `schedule`; weights, checkpoint and metrics are written to `out`.

    attack: train on its adversarial examples instead of the clean images. metadata: stored in the weights' files.

    Writes `checkpoint.safetensors` and `best.safetensors` after an epoch, at most every ten seconds, and when stopped
    or finished; `last.safetensors` when finished; one line per epoch to `metrics.jsonl`, and to TensorBoard if
    installed.
    A NaN or infinite loss ends the run before the update and writes `nonfinite.safetensors`, which reproduces the step;
    on a GPU it is detected within half a second or at the end of the epoch.
    """
    run = _JointTraining(
        model, data, schedule, out, attack, device or data.x.device, precision, compiled, metadata or {}
    )
    with preserved_random_state(), devices.cudnn_benchmark():
        model.train()
        done = run.run(resume, watch, stop)
        model.eval()
        return done


class _JointTraining(TrainingLoop[Progress]):
    """One joint training run."""

    def __init__(
        self,
        model: JointModel,
        data: Dataset,
        schedule: Schedule,
        out: Path,
        attack: PerturbsImages | None,
        device: torch.device,
        precision: str,
        compiled: bool,
        metadata: Mapping[str, str],
    ) -> None:
        if schedule.holdout >= len(data):
            raise InputError(f"holdout is {schedule.holdout}; expected fewer than the {len(data)} training images.")
        with devices.autocast(device, precision):  # an unavailable precision raises before any work
            validate.inputs(data.x[:1].to(device), model.to(device))
        validate.labels(data.y, data.x, model.classes)
        self.model, self.schedule, self.attack, self.precision = model, schedule, attack, precision
        used = len(data) - schedule.holdout
        x, y = data.x[:used].to(device), data.y[:used].to(device)
        self.holdout = (data.x[used:].to(device), data.y[used:].to(device))
        self.joint_step = JointStep(model, x, y, schedule, attack=attack, precision=precision, compiled=compiled)
        super().__init__(
            model,
            [self.joint_step.optimiser],
            x,
            epochs=schedule.epochs,
            batch=schedule.batch,
            seed=schedule.seed,
            out=out,
            metadata={**metadata, "data": data.sha256},
        )
        self.best_score = math.inf
        self.best_weights: dict[str, Tensor] = {}  # of epoch `best_epoch`, not yet written
        self.best_epoch = 0

    def train_step(self, indices: Tensor, seed: int) -> None:
        """Take one step on the images `indices`."""
        rate = self.schedule.rate((self.step + 1) / self.steps_per_epoch - 1e-9)
        try:
            self.joint_step(indices, seed=seed, rate=rate)
        except NonFiniteError:
            raise self.nonfinite_error(self.step, DIVERGENCE_ADVICE) from None

    def measure(self, position: BaseProgress, *, end_of_epoch: bool) -> Progress:
        """Return mean losses and accuracy, and at the end of an epoch the accuracy on the held-out images."""
        steps = self.step - (position.epoch - 1) * self.steps_per_epoch
        if skipped := self.joint_step.skipped():
            raise self.nonfinite_error(self.step - skipped, DIVERGENCE_ADVICE)
        classification, auxiliary, accuracy = (self.joint_step.sums / steps).tolist()
        holdout = self._holdout_accuracy() if end_of_epoch else None
        means = {"classification": classification, "auxiliary": auxiliary, "accuracy": accuracy, "holdout": holdout}
        progress = Progress(**asdict(position), **means)
        if end_of_epoch:
            self._keep_if_best(progress)
        return progress

    def history_row(self, progress: Progress) -> dict[str, Any]:
        """Return the line of metrics.jsonl for an epoch."""
        return {
            "epoch": progress.epoch,
            "lr": self.schedule.rate(progress.epoch - 0.5),
            "classification": progress.classification,
            "auxiliary": progress.auxiliary,
            "accuracy": progress.accuracy,
            "holdout": progress.holdout,
            "images_per_second": round(progress.images_per_second, 1),
        }

    def reset_sums(self) -> None:
        """Set the epoch's sums to zero."""
        self.joint_step.sums.zero_()

    def weights(self) -> Mapping[str, Tensor]:
        """Return the model's weights."""
        return self.model.state_dict()

    def identity(self) -> dict[str, Any]:
        """Return schedule, attack, precision and metadata."""
        settings = {"schedule": asdict(self.schedule), "attack": repr(self.attack), "precision": self.precision}
        return {**settings, **self.metadata}

    def sums(self) -> dict[str, Tensor]:
        """Return the sums of losses and accuracy."""
        return {"sums": self.joint_step.sums}

    def state(self) -> dict[str, Any]:
        """Add the score of the best epoch."""
        return {**super().state(), "best": self.best_score}

    def restore_sums(self, sums: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore sums and best score from a checkpoint."""
        self.joint_step.sums.copy_(sums["sums"])
        self.best_score = state["best"]

    def _keep_if_best(self, progress: Progress) -> None:
        """Copy the weights if this epoch has the best held-out accuracy or, without holdout, the lowest loss."""
        score = progress.classification + self.model.alpha * progress.auxiliary
        score = score if progress.holdout is None else -progress.holdout
        if score < self.best_score:
            self.best_score = score
            self.best_weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
            self.best_epoch = progress.epoch

    def _holdout_accuracy(self) -> float | None:
        x, y = self.holdout
        if not len(x):
            return None
        with isolated(self.model), torch.no_grad():
            correct = torch.cat([self.model(part).argmax(1) for part in x.chunk(-(-len(x) // 1000))]) == y
        return float(correct.float().mean())

    def _save_checkpoint(self) -> None:
        """Write the best weights before the checkpoint that contains their score."""
        if self.best_weights:
            self._save_weights("best", self.best_weights, self.best_epoch)
            self.best_weights = {}
        super()._save_checkpoint()
