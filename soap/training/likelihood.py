"""Maximum-likelihood objective of a `PixelCNN`: minimise bits per dimension with Adam."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn

from soap.models.pixelcnn import PixelCNN
from soap.shapes import Float, Tensor
from soap.training.generative import update_average
from soap.training.schedule import GenerativeSchedule


class AveragedModel(nn.Module):
    """A model, the running average of its weights, and the number of steps taken."""

    steps: Tensor

    def __init__(self, model: PixelCNN) -> None:
        super().__init__()
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("steps", torch.zeros(()))


class Likelihood:
    """Objective of a `PixelCNN`: `step` is one step of Adam on a batch, `product` the averaged model.

    The learning rate rises linearly over `warmup_steps` and falls to zero along a half cosine.
    """

    def __init__(self, model: PixelCNN, schedule: GenerativeSchedule) -> None:
        self.networks = AveragedModel(model)
        self.schedule = schedule
        self.optimiser = torch.optim.Adam(model.parameters(), lr=schedule.lr, betas=schedule.betas, fused=True)
        self.optimisers: Sequence[torch.optim.Optimizer] = (self.optimiser,)

    def step(self, x: Float[Tensor, "batch c h w"], generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """Update the model on images in [0, 1]; `progress` in [0, 1) is the completed fraction of the training.

        Nothing waits for the device: the step count, and so the learning rate, is a tensor on it. Dropout, the only
        random draw, uses the global random state, which the loop seeds at every step.
        """
        networks, schedule = self.networks, self.schedule
        networks.model.train()
        warm = ((networks.steps + 1) / max(1, schedule.warmup_steps)).clamp(max=1)
        self.optimiser.param_groups[0]["lr"] = warm * (schedule.lr * (1 + math.cos(math.pi * progress)) / 2)
        bits = networks.model.bits_per_dim(x).mean()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(bits)
        self.optimiser.step()
        update_average(networks.average, networks.model, networks.steps, schedule.average)
        networks.steps += 1
        return {"bits_per_dim": bits.detach()}

    def product(self) -> PixelCNN:
        """Return the averaged model in evaluation mode."""
        return self.networks.average.eval()
