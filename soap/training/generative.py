"""Training of label-free models, by whatever objective: the same run as joint training, without labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from soap import validate
from soap._runtime import devices, distributed
from soap._runtime.isolation import preserved_random_state
from soap.data import Dataset
from soap.errors import InputError
from soap.shapes import Tensor
from soap.training.run import SAVE_EVERY, Run, Standing, Trained, check_finite
from soap.training.schedule import AUGMENTATIONS


@dataclass(frozen=True, kw_only=True)
class GenerativeSchedule:
    """How long and how fast to train a label-free model: Adam, and an average of the weights along the way.

    lr: the highest rate; the objective lowers it as training proceeds. betas: Adam's. warmup_steps: the rate rises
    from zero over them. average: decay of the running average of the weights, a step; 0 keeps the last weights.
    augment: names as in `Schedule`.
    """

    epochs: int
    lr: float
    batch: int = 64
    betas: tuple[float, float] = (0.5, 0.9)
    warmup_steps: int = 0
    average: float = 0.999
    augment: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        validate.at_least("epochs", self.epochs, 1)
        validate.at_least("batch", self.batch, 1)
        validate.positive("lr", self.lr)
        validate.at_least("warmup_steps", self.warmup_steps, 0)
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise InputError(f"betas is {self.betas!r}, want Adam's two decays, e.g. [0.5, 0.9].")
        for name, decay in (("beta", self.betas[0]), ("beta", self.betas[1]), ("average", self.average)):
            if not 0 <= decay < 1:
                raise InputError(f"{name} is {decay!r}, want a decay of at least 0 and below 1.")
        for name in self.augment:
            validate.choice("augment", name, tuple(AUGMENTATIONS))


@runtime_checkable
class Objective(Protocol):
    """What is trained, and how one step of it goes; the schedule is its own to follow."""

    @property
    def networks(self) -> nn.Module:
        """All that is trained, and the running averages: what a checkpoint holds."""

    @property
    def optimisers(self) -> Sequence[torch.optim.Optimizer]:
        """Those of the networks; every parameter that is trained has one."""

    def step(self, x: Tensor, generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """One update on a batch [b, c, h, w] in [0, 1] on the device, without waiting for the host.

        progress: how far the run has come, in [0, 1), for the rate. The metrics are 0-dim tensors on the device, the
        same names at every step.
        """

    def product(self) -> nn.Module:
        """What users get, e.g. the averaged generator, in evaluation mode."""


@dataclass(frozen=True, kw_only=True)
class GenerativeProgress(Standing):
    """Where a run stands; the objective's metrics are means over the epoch so far."""

    metrics: Mapping[str, float]


def train_generative(
    objective: Objective,
    data: Dataset,
    schedule: GenerativeSchedule,
    *,
    out: Path,
    device: torch.device | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    metadata: Mapping[str, str] | None = None,
    watch: Callable[[GenerativeProgress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train the objective's networks in place by `schedule` on the images of `data`; labels are not looked at.

    compiled: torch.compile the networks, unless the objective says `compilable = False`. metadata: kept in the
    weights' files. Writes `checkpoint.safetensors` after an epoch, but not more often than every
    ten seconds, on a stop and at the end; the product's weights to `last.safetensors` at the end; and one line an
    epoch to `metrics.jsonl` (TensorBoard too where it is installed).
    """
    if distributed.here().many:
        raise InputError(
            f"label-free models train in one process, got {distributed.here().world}; start it without a launcher."
        )
    run = _Run(objective, data, schedule, out, device or data.x.device, precision, metadata or {})
    if compiled:
        if not getattr(objective, "compilable", True):
            raise InputError(f"{type(objective).__name__} cannot be compiled; train without --compile.")
        for network in objective.networks.children():
            network.compile()
    with preserved_random_state(), devices.cudnn_benchmark():
        objective.networks.train()
        done = run.go(resume, watch, stop)
        objective.networks.eval()
        return done


class _Run(Run[GenerativeProgress]):
    """The state of one label-free training run."""

    def __init__(
        self,
        objective: Objective,
        data: Dataset,
        schedule: GenerativeSchedule,
        out: Path,
        device: torch.device,
        precision: str,
        metadata: Mapping[str, str],
    ) -> None:
        objective.networks.to(device)
        with devices.autocast(device, precision):  # a choice that cannot be had is refused before any work
            validate.inputs(data.x[:1].to(device), objective.product())
        self.objective, self.schedule, self.precision = objective, schedule, precision
        super().__init__(
            objective.networks,
            objective.optimisers,
            data.x.to(device),
            epochs=schedule.epochs,
            batch=schedule.batch,
            seed=schedule.seed,
            out=out,
            metadata={**metadata, "data": data.sha256},
            save_every=SAVE_EVERY,
        )
        self.generator = torch.Generator(device)
        self.metrics: dict[str, Tensor] = {}  # added up over the epoch, on the device

    def advance(self, rows: Tensor, seed: int) -> None:
        """One step on the images `rows`."""
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)  # dropout draws from the global state
        x = self.x[rows]
        for name in self.schedule.augment:
            x = AUGMENTATIONS[name](x, self.generator)
        with devices.autocast(x.device, self.precision):
            metrics = self.objective.step(x, self.generator, self.step / self.total)
        for name, value in metrics.items():
            value = value.detach().float()
            self.metrics[name] = self.metrics[name] + value if name in self.metrics else value

    def standing(self, at: Standing, *, whole_epoch: bool) -> GenerativeProgress:
        """Mean metrics, fetched from the device at once."""
        done = self.step - (at.epoch - 1) * self.steps_per_epoch
        means = (torch.stack(list(self.metrics.values())) / done).tolist()
        check_finite(sum(means), at, "Lower lr or raise warmup_steps")
        return GenerativeProgress(**asdict(at), metrics=dict(zip(self.metrics, means, strict=True)))

    def row(self, shown: GenerativeProgress) -> dict[str, Any]:
        """What the history says of an epoch."""
        return {"epoch": shown.epoch, **shown.metrics, "images_per_second": round(shown.images_per_second, 1)}

    def begin_epoch(self) -> None:
        """Forget the sums of the epoch that has ended."""
        self.metrics = {}

    def weights(self) -> Mapping[str, Tensor]:
        """The product's alone: nobody needs the critic afterwards."""
        return self.objective.product().state_dict()

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that resumes it."""
        kind = type(self.objective).__name__
        settings = {"objective": kind, "schedule": asdict(self.schedule), "precision": self.precision}
        return {**settings, **self.metadata}

    def sums(self) -> dict[str, Tensor]:
        """The metrics added up so far."""
        return self.metrics

    def take_up(self, sums: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from a checkpoint, its metrics in the order in which they were."""
        self.metrics = {name: sums[name].to(self.x.device) for name in state["metrics"]}

    def state(self) -> dict[str, Any]:
        """The names of the metrics, too: files of tensors do not keep their order."""
        return {**super().state(), "metrics": list(self.metrics)}
