"""Training by maximum likelihood: an autoregressive model of images, its bits per dimension lowered by Adam."""

import copy
import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from soap.models.pixelcnn import PixelCNN
from soap.shapes import Float, Tensor


@runtime_checkable
class Pace(Protocol):
    """What the objective reads of a schedule.

    lr: Adam's largest rate, reached linearly over `warmup_steps` and lowered along a half cosine to zero at the end.
    betas: Adam's. average: decay of the running average of the weights.
    """

    @property
    def lr(self) -> float: ...  # noqa: D102
    @property
    def betas(self) -> tuple[float, float]: ...  # noqa: D102
    @property
    def warmup_steps(self) -> int: ...  # noqa: D102
    @property
    def average(self) -> float: ...  # noqa: D102


class Averaged(nn.Module):
    """A model in training, the running average of its weights, and how many steps were taken."""

    steps: Tensor

    def __init__(self, model: PixelCNN) -> None:
        super().__init__()
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("steps", torch.zeros(()))

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the average towards the model, over the first steps faster: a short training then does not lag."""
        keep = ((1 + self.steps) / (10 + self.steps)).clamp(max=decay)
        for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            kept.lerp_(new, (1 - keep).to(new.dtype))


class Likelihood:
    """The objective of a `PixelCNN`: `step` takes one step of Adam on a batch, `product` is the averaged model.

    `networks` holds all that is trained and belongs into a checkpoint, `optimisers` the one optimiser.
    """

    def __init__(self, model: PixelCNN, schedule: Pace) -> None:
        self.networks = Averaged(model)
        self.schedule = schedule
        self.optimiser = torch.optim.Adam(model.parameters(), lr=schedule.lr, betas=schedule.betas, fused=True)
        self.optimisers: Sequence[torch.optim.Optimizer] = (self.optimiser,)

    def step(self, x: Float[Tensor, "batch c h w"], generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """One update on images in [0, 1]; `progress` in [0, 1) is the share of the training done.

        Nothing waits for the device: the count of steps, and so the rate, lie there. Dropout, the only draw, is from
        the global random state, which the loop seeds for every step together with `generator`.
        """
        networks, schedule = self.networks, self.schedule
        networks.model.train()
        warm = ((networks.steps + 1) / max(1, schedule.warmup_steps)).clamp(max=1)
        self.optimiser.param_groups[0]["lr"] = warm * (schedule.lr * (1 + math.cos(math.pi * progress)) / 2)
        bits = networks.model.bits_per_dim(x).mean()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(bits)
        self.optimiser.step()
        networks.follow(schedule.average)
        networks.steps += 1
        return {"bits_per_dim": bits.detach()}

    def product(self) -> PixelCNN:
        """The averaged model in evaluation mode."""
        return self.networks.average.eval()
