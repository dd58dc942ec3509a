"""Training of generative models without labels, by any `Objective`, in the loop of joint training."""

import math
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
from soap.errors import InputError, SoapError
from soap.shapes import Tensor
from soap.training.loop import BaseProgress, Trained, TrainingLoop
from soap.training.schedule import GenerativeSchedule


@runtime_checkable
class Objective(Protocol):
    """What is trained and how one step works; the objective applies the learning rate itself."""

    @property
    def networks(self) -> nn.Module:
        """Everything a checkpoint holds: trained networks and running averages."""

    @property
    def optimisers(self) -> Sequence[torch.optim.Optimizer]:
        """The optimisers of all trained parameters."""

    def step(self, x: Tensor, generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """Update the networks on a batch [b, c, h, w] in [0, 1] without waiting for the host; return metrics.

        progress: completed fraction of the run, in [0, 1), for the learning rate. Metrics are 0-dim tensors on the
        device, with the same names at every step.
        """

    def product(self) -> nn.Module:
        """Return the final model, e.g. the averaged generator, in evaluation mode."""


@dataclass(frozen=True, kw_only=True)
class GenerativeProgress(BaseProgress):
    """Progress of generative training; metrics are means over the epoch so far."""

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
    """Train the objective's networks in place by `schedule` on the images of `data`; labels are not used.

    compiled: apply torch.compile to the networks, unless the objective has `compilable = False`. metadata: stored in
    the weights' files. Files are written as by `soap.training.train`, except that there is no best epoch;
    `last.safetensors` holds the weights of `objective.product()`.
    """
    if distributed.processes().is_distributed:
        raise InputError(
            f"generative models train in one process, got {distributed.processes().world_size}; run it without a "
            "launcher."
        )
    device = device or data.x.device
    objective.networks.to(device)
    with devices.autocast(device, precision):  # an unavailable precision raises before any work
        validate.inputs(data.x[:1].to(device), objective.product())
    metadata = {**(metadata or {}), "data": data.sha256}
    run = _GenerativeTraining(objective, data.x.to(device), schedule, precision, out, metadata)
    if compiled:
        if not getattr(objective, "compilable", True):
            raise InputError(f"{type(objective).__name__} does not support torch.compile; train without --compile.")
        for network in objective.networks.children():
            network.compile()
    with preserved_random_state(), devices.cudnn_benchmark():
        objective.networks.train()
        done = run.run(resume, watch, stop)
        objective.networks.eval()
        return done


class _GenerativeTraining(TrainingLoop[GenerativeProgress]):
    """One generative training run."""

    def __init__(
        self,
        objective: Objective,
        x: Tensor,
        schedule: GenerativeSchedule,
        precision: str,
        out: Path,
        metadata: Mapping[str, str],
    ) -> None:
        self.objective, self.schedule, self.precision = objective, schedule, precision
        settings = {"objective": type(objective).__name__, "precision": precision}
        super().__init__(
            objective.networks, objective.optimisers, x, schedule, out=out, metadata=metadata, settings=settings
        )
        self.generator = torch.Generator(x.device)

    def train_step(self, indices: Tensor, seed: int) -> None:
        """Take one step on the images `indices`."""
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)  # dropout draws from the global state
        x = self.schedule.augmented(self.x[indices], self.generator)
        with devices.autocast(x.device, self.precision):
            metrics = self.objective.step(x, self.generator, self.step / self.total)
        for name, value in metrics.items():
            value = value.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def measure(self, position: BaseProgress, *, end_of_epoch: bool) -> GenerativeProgress:
        """Return mean metrics, copied from the device in one transfer."""
        steps = self.step - (position.epoch - 1) * self.steps_per_epoch
        means = (torch.stack(list(self.sums.values())) / steps).tolist()
        if not math.isfinite(sum(means)):
            raise SoapError(
                f"the loss is {sum(means)} in epoch {position.epoch} (by step {position.step}): training diverged. "
                "Lower lr or raise warmup_steps in the recipe."
            )
        return GenerativeProgress(**asdict(position), metrics=dict(zip(self.sums, means, strict=True)))

    def history_row(self, progress: GenerativeProgress) -> dict[str, Any]:
        """Return the mean metrics."""
        return dict(progress.metrics)

    def reset_sums(self) -> None:
        """Discard the epoch's sums."""
        self.sums = {}

    def weights(self) -> Mapping[str, Tensor]:
        """Return the product's weights only; the critic, for example, is not needed afterwards."""
        return self.objective.product().state_dict()

    def restore_sums(self, sums: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the sums from a checkpoint, in their original order."""
        self.sums = {name: sums[name].to(self.x.device) for name in state["metrics"]}

    def state(self) -> dict[str, Any]:
        """Add the names of the metrics, because tensor files do not keep their order."""
        return {**super().state(), "metrics": list(self.sums)}
