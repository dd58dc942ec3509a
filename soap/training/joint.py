"""Joint training of classifier and auxiliary task, and of plain and adversarially trained classifiers.

`fit` trains a wrapped model on arrays or a data set with fewer arguments than `train`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._files import tensor_files
from soap._runtime import devices, seeding
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary import JointModel, serialization
from soap.data import Dataset
from soap.data.dataset import Array, as_dataset
from soap.errors import InputError, SoapError
from soap.shapes import Tensor
from soap.training import checkpoint
from soap.training.certified import CertifiedTraining
from soap.training.joint_step import JointStep, NonFiniteError, PerturbsImages
from soap.training.loop import BaseProgress, Trained, TrainingLoop
from soap.training.schedule import Schedule

NONFINITE_FILE = "nonfinite.safetensors"
"""Written by a run whose loss is NaN or infinite, to reproduce the step."""


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
    certified: CertifiedTraining | None = None,
    device: torch.device | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    metadata: Mapping[str, str] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train `model` in place by `schedule`; weights, checkpoint and metrics are written to `out`.

    attack: train on its adversarial examples instead of the clean images; `AdversarialTraining` attacks the model
    through its purifier. certified: minimise a bound on the loss over
    all inputs within a radius. metadata: stored in the weights' files.

    Writes `checkpoint.safetensors` and `best.safetensors` after an epoch, at most every ten seconds, and when stopped
    or finished; `last.safetensors` when finished; one line per epoch to `metrics.jsonl`, and to TensorBoard if
    installed.
    A NaN or infinite loss ends the run before the update and writes `nonfinite.safetensors`, which reproduces the step;
    on a GPU it is detected within half a second or at the end of the epoch.
    """
    if schedule.holdout >= len(data):
        raise InputError(f"holdout is {schedule.holdout}; expected fewer than the {len(data)} training images.")
    device = device or data.x.device
    with devices.autocast(device, precision):  # an unavailable precision raises before any work
        validate.inputs(data.x[:1].to(device), model.to(device))
    validate.labels(data.y, data.x, model.classes)
    x, y, used = data.x.to(device), data.y.to(device), len(data) - schedule.holdout
    step = JointStep(
        model, x[:used], y[:used], schedule, attack=attack, certified=certified, precision=precision, compiled=compiled
    )
    metadata = {**(metadata or {}), "data": data.sha256}
    run = _JointTraining(step, holdout=(x[used:], y[used:]), out=out, metadata=metadata)
    with preserved_random_state(), devices.cudnn_benchmark():
        model.train()
        done = run.run(resume, watch, stop)
        if run.result is not model:
            model.load_state_dict(run.result.state_dict())
        model.eval()
        return done


def fit(
    model: JointModel,
    x: Dataset | Array,
    y: Array | None = None,
    *,
    out: str | Path,
    epochs: int,
    lr: float = 0.01,
    resume: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    **further: Any,
) -> Trained:
    """Train or fine-tune classifier and auxiliary task together, in place, on the device of the model's weights.

    x, y: a `Dataset` alone, or inputs [n, ...] (bytes, or floats in [0, 1]) and class indices [n]. out: the folder of
    the run; `soap.auxiliary.restore(out / "last.safetensors", ...)` loads its weights. resume: continue a run in `out`
    that was stopped or killed, with the same arguments; it ends with the same weights as an uninterrupted run.
    further: `batch_size`, `seed`, `holdout` and the other fields of `soap.training.Schedule`.
    """
    schedule, out = Schedule(epochs=epochs, lr=lr, **further), Path(out)
    if isinstance(x, Dataset):
        if y is not None:
            raise InputError("got a Dataset, which contains labels, and y; leave out y.")
        data = x
    elif y is None:
        raise InputError("got inputs without labels; pass y, or a Dataset.")
    else:
        data = as_dataset(x, y, classes=model.classes)
    tensor_files.check_storable(model.state_dict())
    settings = serialization.metadata(model)
    checkpoint.check_folder(out, resume=resume)
    device = next(model.parameters()).device
    return train(
        model, data, schedule, out=out, device=device, resume=resume, metadata=settings, watch=watch, stop=stop
    )


class _JointTraining(TrainingLoop[Progress]):
    """One joint training run; `holdout` are the held-out images and their labels."""

    def __init__(
        self, step: JointStep, *, holdout: tuple[Tensor, Tensor], out: Path, metadata: Mapping[str, str]
    ) -> None:
        self.model, self.schedule, self.joint_step, self.holdout = step.model, step.schedule, step, holdout
        networks: nn.Module = self.model
        if step.average is not None:
            networks = nn.ModuleDict({"model": self.model, "average": step.average})
        self.result = self.model if step.average is None else step.average
        settings: dict[str, Any] = {"attack": repr(step.attack), "precision": step.precision}
        if step.certified is not None:
            settings["certified"] = asdict(step.certified)
        super().__init__(
            networks, [step.optimiser], step.x, self.schedule, out=out, metadata=metadata, settings=settings
        )
        self.sums = {"sums": step.sums}
        self.best_score = math.inf
        self.best_weights: dict[str, Tensor] = {}  # of epoch `best_epoch`, not yet written
        self.best_epoch = 0

    def train_step(self, indices: Tensor, seed: int) -> None:
        """Take one step on the images `indices`."""
        rate = self.schedule.rate((self.step + 1) / self.steps_per_epoch - 1e-9)
        try:
            self.joint_step(indices, seed=seed, rate=rate, step=self.step, progress=self.step / self.total)
        except NonFiniteError:
            raise self._nonfinite_error(self.step) from None

    def measure(self, position: BaseProgress, *, end_of_epoch: bool) -> Progress:
        """Return mean losses and accuracy, and at the end of an epoch the accuracy on the held-out images."""
        steps = self.step - (position.epoch - 1) * self.steps_per_epoch
        if skipped := self.joint_step.skipped():
            raise self._nonfinite_error(self.step - skipped)
        classification, auxiliary, accuracy = (self.joint_step.sums / steps).tolist()
        holdout = self._holdout_accuracy() if end_of_epoch else None
        means = {"classification": classification, "auxiliary": auxiliary, "accuracy": accuracy, "holdout": holdout}
        progress = Progress(**asdict(position), **means)
        if end_of_epoch:
            self._keep_if_best(progress)
        return progress

    def history_row(self, progress: Progress) -> dict[str, Any]:
        """Return learning rate, mean losses and accuracies."""
        names = ("classification", "auxiliary", "accuracy", "holdout")
        means = {name: getattr(progress, name) for name in names}
        return {"lr": self.schedule.rate(progress.epoch - 0.5), **means}

    def reset_sums(self) -> None:
        """Set the epoch's sums to zero."""
        self.joint_step.sums.zero_()

    def weights(self) -> Mapping[str, Tensor]:
        """Return the model's weights, or their running average."""
        return self.result.state_dict()

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
            self.best_weights = {name: value.detach().clone() for name, value in self.weights().items()}
            self.best_epoch = progress.epoch

    def _nonfinite_error(self, step: int) -> SoapError:
        """Return the error for a NaN or infinite loss at `step` (from 0), and write a file that reproduces it.

        The file holds the weights before the step and the step's random seed and images. Batch-norm statistics, which
        training does not use, are included if they are finite.
        """
        epoch, batch_index = divmod(step, self.steps_per_epoch)
        images = self.order(epoch)[batch_index * self.batch_size : (batch_index + 1) * self.batch_size].tolist()
        seed = seeding.seed_for(self.seed, 1, step)
        facts = {"step": step, "epoch": epoch + 1, "seed": seed, "images": images, "identity": self.identity}
        tensors = {name: value for name, value in self.networks.state_dict().items() if torch.isfinite(value).all()}
        if self.group.is_main:
            tensor_files.save_tensors(self.out / NONFINITE_FILE, tensors, {**self.metadata, "state": json.dumps(facts)})
        self.group.barrier()  # a launcher ends all processes when one ends
        shown = ", ".join(map(str, images[:8])) + (", ..." if len(images) > 8 else "")
        return SoapError(
            f"the loss of step {step + 1:,} (epoch {epoch + 1}, images {shown}) is NaN or infinite: training diverged "
            f"and stopped before the update. {self.out / NONFINITE_FILE} holds the weights, seed and images of the "
            "step. Lower lr or raise warmup_epochs in the recipe."
        )

    def _holdout_accuracy(self) -> float | None:
        x, y = self.holdout
        if not len(x):
            return None
        with isolated(self.result), torch.no_grad():
            correct = torch.cat([self.result(part).argmax(1) for part in x.chunk(-(-len(x) // 1000))]) == y
        return float(correct.float().mean())

    def _save_checkpoint(self) -> None:
        """Write the best weights before the checkpoint that contains their score."""
        if self.best_weights:
            self._save_weights("best", self.best_weights, self.best_epoch)
            self.best_weights = {}
        super()._save_checkpoint()
