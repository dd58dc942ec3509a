"""What every training run does, whatever it trains: epochs in a random order, saves, a history, and going on later.

Every random draw depends on (seed, step) alone, so a run that was stopped anywhere and resumed ends with the
same weights as one that was not. The data lie on the device and no step waits for the host.

Several processes take every step together. All know the same at every step; the first alone writes.
"""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from soap._files import atomic, tensor_files
from soap._runtime import distributed, seeding
from soap.errors import SoapError
from soap.shapes import Tensor
from soap.training import checkpoint

STEPS_BETWEEN_TALKS = 10
"""Of several processes, about stopping and showing, on a GPU: each makes the host wait for the device."""

SAVE_EVERY = 10.0
"""Seconds between saves at least: what a crash costs at most, and an epoch longer than that."""


NONFINITE = "nonfinite.safetensors"
"""What a run leaves whose loss became no number."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a run stands."""

    epoch: int
    epochs: int
    step: int
    steps: int
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run left behind; `finished` is false when it was asked to stop early."""

    finished: bool
    step: int
    out: Path
    history: list[dict[str, Any]]


Shown = TypeVar("Shown", bound=Standing)


class Run(ABC, Generic[Shown]):
    """One training run over the images `x`, which lie on the device; subclasses say what a step is and what is told.

    networks, optimisers: what a checkpoint holds. metadata: kept in the weights' files. save_every: seconds between
    checkpoints at least.
    """

    def __init__(
        self,
        networks: nn.Module,
        optimisers: Sequence[torch.optim.Optimizer],
        x: Tensor,
        *,
        epochs: int,
        batch: int,
        seed: int,
        out: Path,
        metadata: Mapping[str, str],
        save_every: float,
    ) -> None:
        self.networks, self.optimisers, self.x = networks, optimisers, x
        self.epochs, self.seed, self.out, self.metadata = epochs, seed, out, metadata
        self.batch = min(batch, len(x))
        self.ranks = distributed.here()
        self.ranks.part(self.batch)  # refused before any work where it cannot be shared out
        self.steps_per_epoch = len(x) // self.batch  # the ragged rest waits for the next epoch's order
        self.total = epochs * self.steps_per_epoch
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.save_every, self.saved_at = save_every, time.monotonic()

    @abstractmethod
    def advance(self, rows: Tensor, seed: int) -> None:
        """Step number `self.step`, on the images `rows`; all its random draws come from `seed`."""

    @abstractmethod
    def standing(self, at: Standing, *, whole_epoch: bool) -> Shown:
        """Where the run stands, with means over the epoch so far; at the end of an epoch, all there is to measure."""

    @abstractmethod
    def row(self, shown: Shown) -> dict[str, Any]:
        """What the history says of an epoch."""

    @abstractmethod
    def begin_epoch(self) -> None:
        """Forget the sums of the epoch that has ended."""

    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """What goes to `last.safetensors`."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that resumes it."""

    @abstractmethod
    def sums(self) -> dict[str, Tensor]:
        """What has been added up in this epoch so far, for a checkpoint."""

    @abstractmethod
    def take_up(self, sums: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from a checkpoint's sums and state."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint notes beside tensors."""
        return {"step": self.step, "history": self.history}

    def go(self, resume: bool, watch: Callable[[Shown], None], stop: Callable[[], bool]) -> Trained:
        """All epochs from where the checkpoint stands, with the folder for itself alone."""
        with atomic.exclusive_folder(self.out) if self.ranks.first else nullcontext():
            return self._go(resume, watch if self.ranks.first else _blind, stop)

    def _go(self, resume: bool, watch: Callable[[Shown], None], stop: Callable[[], bool]) -> Trained:
        if resume:
            self._load_checkpoint()
        self.ranks.copy_from_first([*self.networks.state_dict().values()])
        tensorboard = self._open_folder() if self.ranks.first else None
        began, first, shown = time.monotonic(), self.step, time.monotonic()
        while self.step < self.total:
            epoch, place = divmod(self.step, self.steps_per_epoch)
            if place == 0 or self.step == first:
                order = self._order(epoch)
            rows = order[place * self.batch : (place + 1) * self.batch]
            self.advance(rows, seeding.seed_for(self.seed, 1, self.step))
            self.step += 1
            speed = (self.step - first) / max(time.monotonic() - began, 1e-9)
            if place + 1 == self.steps_per_epoch:
                watch(self._end_epoch(self._at(epoch, speed), tensorboard))
                shown = time.monotonic()
            elif self._agreed(time.monotonic() - shown > 0.5):
                watch(self.standing(self._at(epoch, speed), whole_epoch=False))
                shown = time.monotonic()
            if self._agreed(stop()):
                if place + 1 < self.steps_per_epoch:  # else it was looked at just now
                    self.standing(self._at(epoch, speed), whole_epoch=False)  # a run that diverged is never saved
                self._save()
                self.ranks.wait()
                break
        return Trained(finished=self.step == self.total, step=self.step, out=self.out, history=self.history)

    def _open_folder(self) -> Any:
        """The run's folder, cleared of what a kill left half-written; a TensorBoard writer or None."""
        with atomic.file_errors(self.out):
            atomic.remove_temporary_files(self.out)
        return _tensorboard(self.out / "tensorboard")

    def _agreed(self, wanted: bool) -> bool:
        """Whether any process wants it: asked at the same steps in all."""
        if self.ranks.many and self.x.is_cuda and self.step % STEPS_BETWEEN_TALKS:
            return False
        return self.ranks.any(wanted)

    def diverged(self, step: int, advice: str) -> SoapError:
        """The error for a loss that is no number at `step` (from 0); all that reproduces it goes to a file.

        The file holds the weights before the step and the random seed and images of the step; of the running
        statistics of batch norms, which training does not look at, those that are numbers.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = self._order(epoch)[place * self.batch : (place + 1) * self.batch].tolist()
        seed = seeding.seed_for(self.seed, 1, step)
        facts = {"step": step, "epoch": epoch + 1, "seed": seed, "images": rows, "identity": self.identity()}
        tensors = {name: value for name, value in self.networks.state_dict().items() if torch.isfinite(value).all()}
        if self.ranks.first:
            tensor_files.save_tensors(self.out / NONFINITE, tensors, {**self.metadata, "state": json.dumps(facts)})
        self.ranks.wait()  # a launcher ends all processes when one does
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        return SoapError(
            f"the loss of step {step + 1:,} (epoch {epoch + 1}, images {shown}) is no number: training diverged, and "
            f"stopped before the update. {self.out / NONFINITE} holds weights, seed and images of the step. "
            f"{advice} in the recipe."
        )

    def _order(self, epoch: int) -> Tensor:
        """This epoch's random order of the images, drawn on the CPU: the same on every device."""
        generator = torch.Generator().manual_seed(seeding.seed_for(self.seed, 0, epoch))
        return torch.randperm(len(self.x), generator=generator).to(self.x.device)

    def _at(self, epoch: int, speed: float) -> Standing:
        return Standing(
            epoch=epoch + 1,
            epochs=self.epochs,
            step=self.step,
            steps=self.total,
            images_per_second=speed * self.batch,
            seconds_left=(self.total - self.step) / speed,
        )

    def _end_epoch(self, at: Standing, tensorboard: Any) -> Shown:
        """Measure, note, and save."""
        shown = self.standing(at, whole_epoch=True)
        row = self.row(shown)
        self.history.append(row)
        if self.ranks.first:
            atomic.write_text(self.out / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in self.history))
        if tensorboard is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    tensorboard.add_scalar(name, value, at.epoch)
            tensorboard.flush()
        self.begin_epoch()
        if self.step == self.total:  # before the checkpoint: one that is finished must find its weights
            self._save_weights("last", self.weights(), at.epoch)
        if self.step == self.total or time.monotonic() - self.saved_at > self.save_every:
            self._save()
        return shown

    def _save_weights(self, which: str, weights: Mapping[str, Tensor], epoch: int) -> None:
        if self.ranks.first:
            metadata = {**self.metadata, "epoch": str(epoch), "weights": which}
            tensor_files.save_tensors(self.out / f"{which}.safetensors", weights, metadata)

    def _save(self) -> None:
        if self.ranks.first:
            checkpoint.save(
                self.out,
                self.networks,
                *self.optimisers,
                extra=self.sums(),
                state=self.state(),
                identity=self.identity(),
            )
        self.saved_at = time.monotonic()

    def _load_checkpoint(self) -> None:
        """All processes read it, the first before the others: it may have to mend what it finds."""
        with self.ranks.first_alone():
            sums, state = checkpoint.restore(self.out, self.networks, *self.optimisers, identity=self.identity())
        self.step, self.history = state["step"], state["history"]
        self.take_up(sums, state)


def _blind(shown: Standing) -> None:
    """What processes other than the first show."""


def check_finite(loss: float, at: Standing, advice: str) -> None:
    """Stop a run whose loss is no number any more."""
    if not math.isfinite(loss):
        raise SoapError(
            f"the loss became {loss} in epoch {at.epoch} (by step {at.step}): training diverged. "
            f"{advice} in the recipe."
        )


def _tensorboard(folder: Path) -> Any:
    """A TensorBoard writer where the package is installed, else None."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
