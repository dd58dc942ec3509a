"""Objectives that minimise one loss of one network with Adam and average its weights."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import nn

from soap import validate
from soap.models import DDPM, Autoencoder
from soap.models.ddpm import to_signed
from soap.models.pixelcnn import PixelCNN
from soap.shapes import Float, Tensor
from soap.training.schedule import GenerativeSchedule, update_average

ModelT = TypeVar("ModelT", bound=nn.Module)


class AveragedModel(nn.Module, Generic[ModelT]):
    """A model, the running average of its weights, and the number of steps taken."""

    model: ModelT
    average: ModelT
    steps: Tensor

    def __init__(self, model: ModelT) -> None:
        super().__init__()
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.register_buffer("steps", torch.zeros(()))


class AveragedObjective(ABC, Generic[ModelT]):
    """`step` is one step of Adam on the mean of `loss` over a batch, `product` the averaged model.

    The learning rate rises linearly over `warmup_steps` and falls to zero along a half cosine. `metric` is the name of
    the loss in metrics.jsonl.
    """

    metric: str = "loss"

    def __init__(self, model: ModelT, schedule: GenerativeSchedule) -> None:
        self.networks = AveragedModel(model)
        self.schedule = schedule
        self.optimiser = torch.optim.Adam(model.parameters(), lr=schedule.lr, betas=schedule.betas, fused=True)
        self.optimisers: Sequence[torch.optim.Optimizer] = (self.optimiser,)

    @abstractmethod
    def loss(self, model: ModelT, x: Float[Tensor, "batch c h w"], generator: torch.Generator) -> Tensor:
        """Return the loss of every image in [0, 1], [batch]; random draws come from `generator` or the global state."""

    def step(self, x: Float[Tensor, "batch c h w"], generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """Update the model on images in [0, 1]; `progress` in [0, 1) is the completed fraction of the training.

        Nothing waits for the device: the step count, and so the learning rate, is a tensor on it.
        """
        networks, schedule = self.networks, self.schedule
        networks.model.train()
        warm = ((networks.steps + 1) / max(1, schedule.warmup_steps)).clamp(max=1)
        self.optimiser.param_groups[0]["lr"] = warm * (schedule.lr * (1 + math.cos(math.pi * progress)) / 2)
        loss = self.loss(networks.model, x, generator).mean()
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimiser.step()
        update_average(networks.average, networks.model, networks.steps, schedule.average)
        networks.steps += 1
        return {self.metric: loss.detach()}

    def product(self) -> ModelT:
        """Return the averaged model in evaluation mode."""
        return self.networks.average.eval()


class NoisePrediction(AveragedObjective[DDPM]):
    """Objective of a `DDPM` (Ho et al. 2020, equation 14): predict the noise of x_t at a random step t of 1 ... T."""

    metric = "noise_error"

    def loss(self, model: DDPM, x: Float[Tensor, "batch c h w"], generator: torch.Generator) -> Float[Tensor, "batch"]:
        """Return the mean over pixels of (predicted noise - noise)^2; it is 1 for a prediction of zero."""
        t = torch.randint(1, model.steps + 1, (len(x),), generator=generator, device=x.device)
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        predicted: Tensor = model(model.noised(to_signed(x), t, noise), t)
        return (predicted.to(noise.dtype) - noise).square().flatten(1).mean(1)


class Denoising(AveragedObjective[Autoencoder]):
    """Objective of an `Autoencoder` (Vincent et al. 2008): reconstruct an image from a noisy copy of it.

    noise: standard deviation of the Gaussian noise on images in [0, 1]; the noisy image is clipped to [0, 1].
    """

    metric = "reconstruction_error"

    def __init__(self, model: Autoencoder, schedule: GenerativeSchedule, *, noise: float = 0.3) -> None:
        validate.non_negative("noise", noise)
        super().__init__(model, schedule)
        self.noise = noise

    def loss(
        self, model: Autoencoder, x: Float[Tensor, "batch c h w"], generator: torch.Generator
    ) -> Float[Tensor, "batch"]:
        """Return the mean over pixels of the squared error."""
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        made: Tensor = model((x + self.noise * noise).clamp(0, 1))
        return (made.to(x.dtype) - x).square().flatten(1).mean(1)


class Likelihood(AveragedObjective[PixelCNN]):
    """Maximum likelihood of a `PixelCNN`. Dropout, the only random draw, uses the global random state."""

    metric = "bits_per_dim"

    def loss(
        self, model: PixelCNN, x: Float[Tensor, "batch c h w"], generator: torch.Generator
    ) -> Float[Tensor, "batch"]:
        """Return the bits per dimension of every image."""
        return model.bits_per_dim(x)
