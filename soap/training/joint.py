"""Joint training of classifier and auxiliary task, and of plain and adversarially trained classifiers.

`fit` trains a wrapped model on arrays or a data set with fewer arguments than `train`.
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import data as torch_data

from soap import validate
from soap._files import tensor_files
from soap._runtime import devices, seeding
from soap._runtime.allocator import kept_memory
from soap._runtime.isolation import isolated, preserved_random_state
from soap._runtime.progress import progress_bar
from soap.auxiliary import JointModel, serialization
from soap.data import Dataset
from soap.data.dataset import Array, as_dataset
from soap.data.torch_data import TorchData, read_torch_data
from soap.errors import InputError, SoapError
from soap.shapes import Tensor
from soap.training import checkpoint
from soap.training.certified import CertifiedTraining
from soap.training.joint_step import JointStep, MakeOptimiser, NonFiniteError, PerturbsImages
from soap.training.loop import BaseProgress, Trained, TrainingLoop
from soap.training.schedule import Schedule

MAX_ACCURACY_LOSS = 0.1
"""Loss of accuracy on training images that `fit` warns of."""

ACCURACY_IMAGES, ACCURACY_BATCH = 1000, 250

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
    data: Dataset | TorchData,
    schedule: Schedule,
    *,
    out: Path,
    optimiser: MakeOptimiser | None = None,
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

    data: may also be a map-style `Dataset` or a `DataLoader` of torch.utils.data, which is read into memory once.
    optimiser: makes the optimiser, e.g. `lambda parameters: torch.optim.Adam(parameters, 1e-3)`, instead of the
    schedule's SGD; the schedule scales its learning rates.
    attack: train on its adversarial examples instead of the clean images; `AdversarialTraining` attacks the model
    through its purifier. certified: minimise a bound on the loss over
    all inputs within a radius. metadata: stored in the weights' files.

    Writes `checkpoint.safetensors` and `best.safetensors` after an epoch, at most every ten seconds, and when stopped
    or finished; `last.safetensors` when finished; one line per epoch to `metrics.jsonl`, and to TensorBoard if
    installed.
    A NaN or infinite loss ends the run before the update and writes `nonfinite.safetensors`, which reproduces the step;
    on a GPU it is detected within half a second or at the end of the epoch.
    """
    if not isinstance(data, Dataset):
        data = read_torch_data(data, classes=model.classes)
    if schedule.holdout >= len(data):
        raise InputError(f"holdout is {schedule.holdout}; expected fewer than the {len(data)} training images.")
    device = device or data.x.device
    with devices.autocast(device, precision):  # an unavailable precision raises before any work
        validate.inputs(data.x[:1].to(device), model.to(device))
    validate.labels(data.y, data.x, model.classes)
    x, y, used = data.x.to(device), data.y.to(device), len(data) - schedule.holdout
    step = JointStep(
        model,
        x[:used],
        y[:used],
        schedule,
        attack=attack,
        certified=certified,
        precision=precision,
        compiled=compiled,
        make_optimiser=optimiser,
    )
    metadata = {**(metadata or {}), "data": data.sha256}
    run = _JointTraining(step, holdout=(x[used:], y[used:]), out=out, metadata=metadata)
    memory = kept_memory() if device.type == "cpu" else nullcontext()
    with preserved_random_state(), devices.cudnn_benchmark(), memory:
        model.train()
        done = run.run(resume, watch, stop)
        if run.result is not model:
            model.load_state_dict(run.result.state_dict())
        model.eval()
        return done


def fit(
    model: JointModel,
    x: Dataset | TorchData | Array,
    y: Array | None = None,
    *,
    out: str | Path,
    epochs: int,
    lr: float = 0.01,
    optimiser: MakeOptimiser | None = None,
    resume: bool = False,
    progress: bool = True,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    **further: Any,
) -> Trained:
    """Train or fine-tune classifier and auxiliary task together, in place, on the device of the model's weights.

    x, y: a `Dataset` alone, a map-style `Dataset` or a `DataLoader` of torch.utils.data alone, or inputs [n, ...]
    (bytes, or floats in [0, 1]) and class indices [n]. out: the folder of the run; `soap.load(out / "last.safetensors",
    module=...)` loads its weights. optimiser: as in `train`, instead of SGD with `lr`. resume: continue a run in `out`
    that was stopped or killed, with the same arguments; it ends with the same weights as an uninterrupted run.
    progress: show a bar in terminals and notebooks, unless `watch` is given. further: `batch_size`, `seed`, `holdout`
    and the other fields of `soap.training.Schedule`.

    Warns if training lowers the accuracy on training images by more than 10 percentage points.
    """
    schedule, out = Schedule(epochs=epochs, lr=lr, **further), Path(out)
    if isinstance(x, Dataset | torch_data.Dataset | torch_data.DataLoader):
        if y is not None:
            raise InputError(f"got a {type(x).__name__}, which contains labels, and y; leave out y.")
        data = x if isinstance(x, Dataset) else read_torch_data(x, classes=model.classes)
    elif y is None:
        raise InputError("got inputs without labels; pass y, or a Dataset.")
    else:
        data = as_dataset(x, y, classes=model.classes)
    tensor_files.check_storable(model.state_dict())
    device, numbers = next(model.parameters()).device, tuple(map(str, range(model.classes)))
    named = len(data.classes) == model.classes and data.classes != numbers
    model.class_names = data.classes if named else None
    given: dict[str, Any] = {"optimiser": optimiser, "device": device, "resume": resume, "stop": stop}
    given["metadata"] = serialization.metadata(model)
    checkpoint.check_folder(out, resume=resume)
    measured = torch.linspace(0, len(data) - 1, min(len(data), ACCURACY_IMAGES)).long().to(data.x.device)
    few, labels = data.x[measured].to(device), data.y[measured].to(device)
    validate.inputs(few, model)
    before = _accuracy(model, few, labels, ACCURACY_BATCH)
    with progress_bar(progress and watch is None) as show:

        def update(now: Progress) -> None:
            note = f"epoch {now.epoch}/{now.epochs}, loss {now.classification:.3f}, accuracy {100 * now.accuracy:.1f} %"
            show("training", now.step, now.steps, note)

        done = train(model, data, schedule, out=out, watch=watch or update, **given)
    after = _accuracy(model, few, labels, ACCURACY_BATCH)
    if after < before - MAX_ACCURACY_LOSS:
        warnings.warn(
            f"training lowered the accuracy on {len(few):,} training images from {100 * before:.1f} % to "
            f"{100 * after:.1f} %; lower lr or alpha, or raise warmup_epochs or epochs.",
            stacklevel=2,
        )
    return done


def _accuracy(model: nn.Module, x: Tensor, y: Tensor, size: int) -> float:
    """Return the share of correctly classified images, at most `size` at a time."""
    with isolated(model), torch.no_grad():
        correct = torch.cat([model(part).argmax(1) for part in x.chunk(-(-len(x) // size))]) == y
    return float(correct.float().mean())


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
        if step.make_optimiser is not None:
            settings["optimiser"] = repr(step.optimiser)
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
        return _accuracy(self.result, x, y, 1000) if len(x) else None

    def _save_checkpoint(self) -> None:
        """Write the best weights before the checkpoint that contains their score."""
        if self.best_weights:
            self._save_weights("best", self.best_weights, self.best_epoch)
            self.best_weights = {}
        super()._save_checkpoint()
