"""One joint training loop for every network of the paper: No Def, adversarial training, and the SOAP tasks.

Every random draw depends on (seed, step) alone, so a run that was stopped anywhere and resumed ends with the
same weights as one that was not. The data lie on the device and no step waits for the host.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from soap import engine, files, validate
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.errors import InputError, SoapError
from soap.isolation import same_random_state, untouched
from soap.shapes import Tensor
from soap.training import checkpoint
from soap.training.schedule import Schedule
from soap.training.stepping import Perturbs, Stepper

SAVE_EVERY = 10.0
"""Seconds between saves at least: what a crash costs at most, and an epoch longer than that."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands; losses and accuracy are means over the epoch so far."""

    epoch: int
    epochs: int
    step: int
    steps: int
    classification: float
    auxiliary: float
    accuracy: float
    holdout: float | None
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run left behind; `finished` is false when it was asked to stop early."""

    finished: bool
    step: int
    out: Path
    history: list[dict[str, Any]]


def train(
    model: JointModel,
    data: Dataset,
    schedule: Schedule,
    *,
    out: Path,
    attack: Perturbs | None = None,
    device: torch.device | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    metadata: Mapping[str, str] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train `model` in place by `schedule`; weights, checkpoint and metrics go to `out`.

    attack: adversarial training on its examples instead of the clean ones. metadata: kept in the weights'
    files. Writes `checkpoint.safetensors` and `best.safetensors` after an epoch, but not more often than every ten
    seconds, on a stop and at the end; `last.safetensors` at the end; and one line an epoch to `metrics.jsonl`
    (TensorBoard too where it is installed).
    """
    run = _Run(model, data, schedule, out, attack, device or data.x.device, precision, compiled, metadata or {})
    with same_random_state(), engine.timed_convolutions():
        return run.go(resume, watch, stop)


class _Run:
    """The state of one training run."""

    def __init__(
        self,
        model: JointModel,
        data: Dataset,
        schedule: Schedule,
        out: Path,
        attack: Perturbs | None,
        device: torch.device,
        precision: str,
        compiled: bool,
        metadata: Mapping[str, str],
    ) -> None:
        if schedule.holdout >= len(data):
            raise InputError(f"holdout is {schedule.holdout} but there are only {len(data)} training images.")
        with engine.autocast(device, precision):  # a choice that cannot be had is refused before any work
            validate.inputs(data.x[:1].to(device), model.to(device))
        validate.labels(data.y, data.x, model.classes)
        self.model, self.schedule, self.attack, self.out = model, schedule, attack, out
        self.device, self.precision = device, precision
        self.metadata = {**metadata, "data": data.sha256}
        kept = len(data) - schedule.holdout
        self.x, self.y = data.x[:kept].to(device), data.y[:kept].to(device)
        self.held = (data.x[kept:].to(device), data.y[kept:].to(device))
        self.batch = min(schedule.batch, kept)
        self.steps_per_epoch = kept // self.batch  # the ragged rest waits for the next epoch's order
        self.stepper = Stepper(model, self.x, self.y, schedule, attack=attack, precision=precision, compiled=compiled)
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.best = math.inf
        self.best_weights: dict[str, Tensor] = {}  # of epoch `best_epoch`, not yet written
        self.best_epoch = 0
        self.saved_at = time.monotonic()

    def go(self, resume: bool, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> Trained:
        """All epochs from where the checkpoint stands."""
        if resume:
            self._load_checkpoint()
        with files.explained(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        tensorboard = _tensorboard(self.out / "tensorboard")
        total = self.schedule.epochs * self.steps_per_epoch
        began, first, shown = time.monotonic(), self.step, time.monotonic()
        self.model.train()
        while self.step < total:
            epoch, place = divmod(self.step, self.steps_per_epoch)
            if place == 0 or self.step == first:
                order = self._order(epoch)
            self.stepper(
                order[place * self.batch : (place + 1) * self.batch],
                seed=engine.seed_for(self.schedule.seed, 1, self.step),
                rate=self.schedule.rate((self.step + 1) / self.steps_per_epoch - 1e-9),
            )
            self.step += 1
            speed = (self.step - first) / max(time.monotonic() - began, 1e-9)
            if time.monotonic() - shown > 0.5:
                watch(self._progress(epoch, total, speed))
                shown = time.monotonic()
            if place + 1 == self.steps_per_epoch:
                watch(self._end_epoch(epoch, total, speed, tensorboard))
            if stop():
                self._save()
                break
        self.model.eval()
        return Trained(finished=self.step == total, step=self.step, out=self.out, history=self.history)

    def _order(self, epoch: int) -> Tensor:
        """This epoch's random order of the images, drawn on the CPU: the same on every device."""
        generator = torch.Generator().manual_seed(engine.seed_for(self.schedule.seed, 0, epoch))
        return torch.randperm(len(self.x), generator=generator).to(self.device)

    def _progress(self, epoch: int, total: int, speed: float, holdout: float | None = None) -> Progress:
        done = self.step - epoch * self.steps_per_epoch
        classification, auxiliary, right = (self.stepper.sums / done).tolist()
        if not math.isfinite(classification + auxiliary):
            raise SoapError(
                f"the loss became {classification + auxiliary} in epoch {epoch + 1} (by step {self.step}): training "
                "diverged. Lower lr or raise warmup_epochs in the recipe."
            )
        return Progress(
            epoch=epoch + 1,
            epochs=self.schedule.epochs,
            step=self.step,
            steps=total,
            classification=classification,
            auxiliary=auxiliary,
            accuracy=right,
            holdout=holdout,
            images_per_second=speed * self.batch,
            seconds_left=(total - self.step) / speed,
        )

    def _end_epoch(self, epoch: int, total: int, speed: float, tensorboard: Any) -> Progress:
        """Measure, note, and save; the best epoch's weights are kept apart."""
        progress = self._progress(epoch, total, speed, self._holdout_accuracy())
        row = {
            "epoch": progress.epoch,
            "lr": self.schedule.rate(epoch + 0.5),
            "classification": progress.classification,
            "auxiliary": progress.auxiliary,
            "accuracy": progress.accuracy,
            "holdout": progress.holdout,
            "images_per_second": round(progress.images_per_second, 1),
        }
        self.history.append(row)
        files.write_text(self.out / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in self.history))
        if tensorboard is not None:
            for name in ("lr", "classification", "auxiliary", "accuracy"):
                tensorboard.add_scalar(name, row[name], progress.epoch)
            tensorboard.flush()
        score = progress.classification + self.model.alpha * progress.auxiliary
        score = score if progress.holdout is None else -progress.holdout
        if score < self.best:
            self.best = score
            self.best_weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
            self.best_epoch = progress.epoch
        self.stepper.sums.zero_()
        if self.step == total:  # before the checkpoint: one that is finished must find its weights
            self._save_weights("last", self.model.state_dict(), progress.epoch)
        if self.step == total or time.monotonic() - self.saved_at > SAVE_EVERY:
            self._save()
        return progress

    def _holdout_accuracy(self) -> float | None:
        x, y = self.held
        if not len(x):
            return None
        with untouched(self.model), torch.no_grad():
            right = torch.cat([self.model(part).argmax(1) for part in x.chunk(-(-len(x) // 1000))]) == y
        return float(right.float().mean())

    def _save_weights(self, which: str, weights: Mapping[str, Tensor], epoch: int) -> None:
        metadata = {**self.metadata, "epoch": str(epoch), "weights": which}
        engine.save_tensors(self.out / f"{which}.safetensors", weights, metadata)

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that resumes it."""
        settings = {"schedule": asdict(self.schedule), "attack": repr(self.attack), "precision": self.precision}
        return {**settings, **self.metadata}

    def _save(self) -> None:
        """The best weights first: a checkpoint that knows of them must find them."""
        if self.best_weights:
            self._save_weights("best", self.best_weights, self.best_epoch)
            self.best_weights = {}
        state = {"step": self.step, "best": self.best, "history": self.history}
        checkpoint.save(
            self.out,
            self.model,
            self.stepper.optimiser,
            extra={"sums": self.stepper.sums},
            state=state,
            identity=self._identity(),
        )
        self.saved_at = time.monotonic()

    def _load_checkpoint(self) -> None:
        extra, state = checkpoint.restore(self.out, self.model, self.stepper.optimiser, identity=self._identity())
        self.stepper.sums.copy_(extra["sums"])
        self.step, self.best, self.history = state["step"], state["best"], state["history"]


def _tensorboard(folder: Path) -> Any:
    """A TensorBoard writer where the package is installed, else None."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
