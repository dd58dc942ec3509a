"""Joint training of every network of the paper: No Def, adversarial training, and the SOAP tasks."""

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
from soap.training.run import SAVE_EVERY, Run, Standing, Trained
from soap.training.schedule import Schedule
from soap.training.stepping import NonFiniteError, Perturbs, Stepper

__all__ = ["Progress", "Trained", "train"]

ADVICE = "Lower lr or raise warmup_epochs"
"""Where a training diverges."""


@dataclass(frozen=True, kw_only=True)
class Progress(Standing):
    """Where a run stands; losses and accuracy are means over the epoch so far."""

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
    (TensorBoard too where it is installed). A loss that is no number ends the run before its update, and leaves
    `nonfinite.safetensors` to reproduce it; on a GPU it is noticed within half a second or at the end of the epoch.
    """
    run = _Run(model, data, schedule, out, attack, device or data.x.device, precision, compiled, metadata or {})
    with preserved_random_state(), devices.cudnn_benchmark():
        model.train()
        done = run.go(resume, watch, stop)
        model.eval()
        return done


class _Run(Run[Progress]):
    """The state of one joint training run."""

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
        with devices.autocast(device, precision):  # a choice that cannot be had is refused before any work
            validate.inputs(data.x[:1].to(device), model.to(device))
        validate.labels(data.y, data.x, model.classes)
        self.model, self.schedule, self.attack, self.precision = model, schedule, attack, precision
        kept = len(data) - schedule.holdout
        x, y = data.x[:kept].to(device), data.y[:kept].to(device)
        self.held = (data.x[kept:].to(device), data.y[kept:].to(device))
        self.stepper = Stepper(model, x, y, schedule, attack=attack, precision=precision, compiled=compiled)
        super().__init__(
            model,
            [self.stepper.optimiser],
            x,
            epochs=schedule.epochs,
            batch=schedule.batch,
            seed=schedule.seed,
            out=out,
            metadata={**metadata, "data": data.sha256},
            save_every=SAVE_EVERY,
        )
        self.best = math.inf
        self.best_weights: dict[str, Tensor] = {}  # of epoch `best_epoch`, not yet written
        self.best_epoch = 0

    def advance(self, rows: Tensor, seed: int) -> None:
        """One step on the images `rows`."""
        rate = self.schedule.rate((self.step + 1) / self.steps_per_epoch - 1e-9)
        try:
            self.stepper(rows, seed=seed, rate=rate)
        except NonFiniteError:
            raise self.diverged(self.step, ADVICE) from None

    def standing(self, at: Standing, *, whole_epoch: bool) -> Progress:
        """Mean losses and accuracy; the held-out images are looked at after whole epochs."""
        done = self.step - (at.epoch - 1) * self.steps_per_epoch
        if skipped := self.stepper.skipped():
            raise self.diverged(self.step - skipped, ADVICE)
        classification, auxiliary, right = (self.stepper.sums / done).tolist()
        holdout = self._holdout_accuracy() if whole_epoch else None
        means = {"classification": classification, "auxiliary": auxiliary, "accuracy": right, "holdout": holdout}
        progress = Progress(**asdict(at), **means)
        if whole_epoch:
            self._keep_if_best(progress)
        return progress

    def row(self, shown: Progress) -> dict[str, Any]:
        """What the history says of an epoch."""
        return {
            "epoch": shown.epoch,
            "lr": self.schedule.rate(shown.epoch - 0.5),
            "classification": shown.classification,
            "auxiliary": shown.auxiliary,
            "accuracy": shown.accuracy,
            "holdout": shown.holdout,
            "images_per_second": round(shown.images_per_second, 1),
        }

    def begin_epoch(self) -> None:
        """Forget the sums of the epoch that has ended."""
        self.stepper.sums.zero_()

    def weights(self) -> Mapping[str, Tensor]:
        """The model's."""
        return self.model.state_dict()

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that resumes it."""
        settings = {"schedule": asdict(self.schedule), "attack": repr(self.attack), "precision": self.precision}
        return {**settings, **self.metadata}

    def sums(self) -> dict[str, Tensor]:
        """Losses and accuracy added up so far."""
        return {"sums": self.stepper.sums}

    def state(self) -> dict[str, Any]:
        """The score of the best epoch, too."""
        return {**super().state(), "best": self.best}

    def take_up(self, sums: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.stepper.sums.copy_(sums["sums"])
        self.best = state["best"]

    def _keep_if_best(self, progress: Progress) -> None:
        """The best epoch's weights are kept apart."""
        score = progress.classification + self.model.alpha * progress.auxiliary
        score = score if progress.holdout is None else -progress.holdout
        if score < self.best:
            self.best = score
            self.best_weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
            self.best_epoch = progress.epoch

    def _holdout_accuracy(self) -> float | None:
        x, y = self.held
        if not len(x):
            return None
        with isolated(self.model), torch.no_grad():
            right = torch.cat([self.model(part).argmax(1) for part in x.chunk(-(-len(x) // 1000))]) == y
        return float(right.float().mean())

    def _save(self) -> None:
        """The best weights first: a checkpoint that knows of them must find them."""
        if self.best_weights:
            self._save_weights("best", self.best_weights, self.best_epoch)
            self.best_weights = {}
        super()._save()
