"""The training loop shared by joint, adversarial and generative training: epochs, checkpoints, history, resume.

Every random draw depends only on (seed, step), so a run that is stopped and resumed ends with the same weights as an
uninterrupted one. The data are on the device and no step waits for the host.

Several processes take every step together and hold the same state; only the main process writes files.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from soap._files import atomic, tensor_files
from soap._runtime import distributed, seeding
from soap.shapes import Tensor
from soap.training import checkpoint
from soap.training.schedule import BaseSchedule

SAVE_INTERVAL_S = 10.0
"""Least time between two checkpoints; a crash loses at most this and one epoch."""

PROGRESS_INTERVAL_S = 0.5
"""Least time between two progress reports within an epoch; each waits for the device."""

STEPS_BETWEEN_EXCHANGES = 10
"""Steps between two agreements of several processes on stopping and reporting, on a GPU: each waits for the device."""


@dataclass(frozen=True, kw_only=True)
class BaseProgress:
    """Position and speed of a run."""

    epoch: int
    epochs: int
    step: int
    steps: int
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of a run; `finished` is false if it was stopped early."""

    finished: bool
    step: int
    out: Path
    history: list[dict[str, Any]]


ProgressT = TypeVar("ProgressT", bound=BaseProgress)


class TrainingLoop(ABC, Generic[ProgressT]):
    """One training run over the images `x`, which are on the device; subclasses define a step and its metrics.

    networks, optimisers: saved in checkpoints. metadata: written to the weights' files. settings: what a checkpoint and
    the run that resumes it must share, besides schedule and metadata.
    """

    def __init__(
        self,
        networks: nn.Module,
        optimisers: Sequence[torch.optim.Optimizer],
        x: Tensor,
        schedule: BaseSchedule,
        *,
        out: Path,
        metadata: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> None:
        self.networks, self.optimisers, self.x = networks, optimisers, x
        self.epochs, self.seed, self.out, self.metadata = schedule.epochs, schedule.seed, out, metadata
        self.identity = {"schedule": asdict(schedule), **settings, **metadata}
        self.batch_size = min(schedule.batch_size, len(x))
        self.group = distributed.processes()
        self.group.shard(self.batch_size)  # raises before any work if the batch cannot be split
        self.steps_per_epoch = len(x) // self.batch_size  # the incomplete last batch is left out; the order changes
        self.total = self.epochs * self.steps_per_epoch
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.sums: dict[str, Tensor] = {}  # of the metrics over the epoch so far, on the device
        self.saved_at = time.monotonic()

    @abstractmethod
    def train_step(self, indices: Tensor, seed: int) -> None:
        """Take step number `self.step` on the images `indices`; all random draws come from `seed`."""

    @abstractmethod
    def measure(self, position: BaseProgress, *, end_of_epoch: bool) -> ProgressT:
        """Return the progress with mean metrics of the epoch so far; raise if the loss is NaN or infinite."""

    @abstractmethod
    def history_row(self, progress: ProgressT) -> dict[str, Any]:
        """Return the metrics of an epoch for its line of metrics.jsonl."""

    @abstractmethod
    def reset_sums(self) -> None:
        """Start the sums of the next epoch."""

    @abstractmethod
    def restore_sums(self, sums: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the epoch's sums and further state from a checkpoint."""

    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights for last.safetensors."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores besides tensors."""
        return {"step": self.step, "history": self.history}

    def run(self, resume: bool, watch: Callable[[ProgressT], None], stop: Callable[[], bool]) -> Trained:
        """Train all epochs, or the rest of them after the checkpoint, with exclusive use of the folder."""
        with atomic.exclusive_folder(self.out) if self.group.is_main else nullcontext():
            if resume:
                self._load_checkpoint()
            self.group.broadcast([*self.networks.state_dict().values()])
            tensorboard = self._open_folder() if self.group.is_main else None
            self._run_epochs(watch if self.group.is_main else lambda progress: None, stop, tensorboard)
        return Trained(finished=self.step == self.total, step=self.step, out=self.out, history=self.history)

    def _run_epochs(self, watch: Callable[[ProgressT], None], stop: Callable[[], bool], tensorboard: Any) -> None:
        began, first_step, shown_at = time.monotonic(), self.step, time.monotonic()
        while self.step < self.total:
            epoch, batch_index = divmod(self.step, self.steps_per_epoch)
            if batch_index == 0 or self.step == first_step:
                order = self.order(epoch)
            indices = order[batch_index * self.batch_size : (batch_index + 1) * self.batch_size]
            self.train_step(indices, seeding.seed_for(self.seed, 1, self.step))
            self.step += 1
            speed = (self.step - first_step) / max(time.monotonic() - began, 1e-9)
            end_of_epoch = batch_index + 1 == self.steps_per_epoch
            if end_of_epoch:
                watch(self._end_epoch(self._position(epoch, speed), tensorboard))
                shown_at = time.monotonic()
            elif self._agreed(time.monotonic() - shown_at > PROGRESS_INTERVAL_S):
                watch(self.measure(self._position(epoch, speed), end_of_epoch=False))
                shown_at = time.monotonic()
            if self._agreed(stop()):
                if not end_of_epoch:  # a diverged run must not be saved; the end of an epoch checks it already
                    self.measure(self._position(epoch, speed), end_of_epoch=False)
                self._save_checkpoint()
                self.group.barrier()
                break

    def _open_folder(self) -> Any:
        """Remove half-written files of a killed run; return a TensorBoard writer if the package is installed."""
        atomic.remove_temporary_files(self.out)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.out / "tensorboard"))

    def _agreed(self, wanted: bool) -> bool:
        """Return whether any process wants it; all processes ask at the same steps."""
        if self.group.is_distributed and self.x.is_cuda and self.step % STEPS_BETWEEN_EXCHANGES:
            return False
        return self.group.any(wanted)

    def order(self, epoch: int) -> Tensor:
        """Return the epoch's random order of the images, drawn on the CPU so that all devices have the same."""
        generator = torch.Generator().manual_seed(seeding.seed_for(self.seed, 0, epoch))
        return torch.randperm(len(self.x), generator=generator).to(self.x.device)

    def _position(self, epoch: int, speed: float) -> BaseProgress:
        return BaseProgress(
            epoch=epoch + 1,
            epochs=self.epochs,
            step=self.step,
            steps=self.total,
            images_per_second=speed * self.batch_size,
            seconds_left=(self.total - self.step) / speed,
        )

    def _end_epoch(self, position: BaseProgress, tensorboard: Any) -> ProgressT:
        """Measure, write the history, and save."""
        progress = self.measure(position, end_of_epoch=True)
        speed = round(progress.images_per_second, 1)
        row = {"epoch": progress.epoch, **self.history_row(progress), "images_per_second": speed}
        self.history.append(row)
        if self.group.is_main:
            atomic.write_text(self.out / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in self.history))
        if tensorboard is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    tensorboard.add_scalar(name, value, position.epoch)
            tensorboard.flush()
        self.reset_sums()
        if self.step == self.total:  # before the checkpoint: a finished checkpoint must have its weights
            self._save_weights("last", self.weights(), position.epoch)
        if self.step == self.total or time.monotonic() - self.saved_at > SAVE_INTERVAL_S:
            self._save_checkpoint()
        return progress

    def _save_weights(self, which: str, weights: Mapping[str, Tensor], epoch: int) -> None:
        if self.group.is_main:
            metadata = {**self.metadata, "epoch": str(epoch), "weights": which}
            tensor_files.save_tensors(self.out / f"{which}.safetensors", weights, metadata)

    def _save_checkpoint(self) -> None:
        if self.group.is_main:
            content = {"extra": self.sums, "state": self.state(), "identity": self.identity}
            checkpoint.save(self.out, self.networks, *self.optimisers, **content)
        self.saved_at = time.monotonic()

    def _load_checkpoint(self) -> None:
        """Read the checkpoint in all processes; the main one goes first because it may repair a damaged one."""
        with self.group.main_first():
            sums, state = checkpoint.restore(self.out, self.networks, *self.optimisers, identity=self.identity)
        self.step, self.history = state["step"], state["history"]
        self.restore_sums(sums, state)
