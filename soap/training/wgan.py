"""Objective of a Wasserstein GAN with gradient penalty (Gulrajani et al. 2017).

The critic D learns to score real images higher than generated ones, with gradients of norm near 1 between the two. The
generator G learns to raise the scores of its images. D(real) - D(generated) estimates the Wasserstein distance.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from soap import validate
from soap._runtime import seeding
from soap._runtime.isolation import preserved_random_state
from soap.errors import InputError
from soap.models import Critic, Generator
from soap.shapes import Float, Tensor
from soap.training.schedule import GenerativeSchedule, update_average


class GanNetworks(nn.Module):
    """Generator, critic, the running average of the generator, and the number of steps taken."""

    steps: Tensor

    def __init__(self, generator: Generator, critic: Critic) -> None:
        super().__init__()
        self.generator, self.critic = generator, critic
        self.average = copy.deepcopy(generator).requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), device=next(generator.parameters()).device))


class WganGp:
    """Objective of a `Generator`: a step is `critic_steps` updates of the critic and one of the generator.

    A step's batch is split among the updates of the critic. penalty: lambda, the weight of (|grad D| - 1)^2. The
    learning rate rises over the warm-up and falls linearly to zero. Metrics: "distance", the estimate
    D(real) - D(generated), and "penalty", unweighted.
    """

    compilable = False  # the penalty needs second derivatives, which torch.compile does not support

    def __init__(
        self, generator: Generator, schedule: GenerativeSchedule, *, critic_steps: int = 5, penalty: float = 10.0
    ) -> None:
        validate.at_least("critic_steps", critic_steps, 1)
        validate.positive("penalty", penalty)
        if schedule.batch_size < critic_steps:
            raise InputError(
                f"batch_size is {schedule.batch_size}; expected at least critic_steps ({critic_steps}), "
                "one image per update."
            )
        with preserved_random_state():
            torch.manual_seed(seeding.seed_for(schedule.seed, 2))
            critic = Critic(width=generator.width, inputs=generator.input_shape)
        # Convolutions are faster in this layout.
        critic.to(next(generator.parameters()).device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.networks = GanNetworks(generator, critic)
        self.schedule, self.critic_steps, self.penalty = schedule, critic_steps, penalty
        self.optimisers: Sequence[torch.optim.Adam] = [
            torch.optim.Adam(network.parameters(), lr=schedule.lr, betas=schedule.betas, fused=True)
            for network in (critic, generator)
        ]

    def step(self, x: Float[Tensor, "batch c h w"], generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """Update critic and generator on one batch of real images, without waiting for the device."""
        if len(x) < self.critic_steps:
            raise InputError(
                f"got {len(x)} images in a step; expected at least {self.critic_steps}: one per critic update."
            )
        schedule, networks = self.schedule, self.networks
        warm = ((networks.steps + 1) / max(1, schedule.warmup_steps)).clamp(max=1)
        for optimiser in self.optimisers:
            optimiser.param_groups[0]["lr"] = warm * (schedule.lr * (1 - progress))
        metrics = torch.stack([self._update_critic(real, generator) for real in x.tensor_split(self.critic_steps)])
        self._update_generator(-(-len(x) // self.critic_steps), generator)
        update_average(networks.average, networks.generator, networks.steps, schedule.average)
        networks.steps += 1
        distance, penalty = metrics.mean(0)
        return {"distance": distance, "penalty": penalty}

    def product(self) -> Generator:
        """Return the averaged generator in evaluation mode."""
        return self.networks.average.eval()

    def _update_critic(self, real: Tensor, generator: torch.Generator) -> Tensor:
        """Update D once; return the estimated distance and the penalty."""
        critic = self.networks.critic
        with torch.no_grad():
            fake = self.networks.generator(self._draw(len(real), generator)).to(real.dtype)
        scores = critic(torch.cat([real, fake])).float()
        distance = scores[: len(real)].mean() - scores[len(real) :].mean()
        share = torch.rand(len(real), 1, 1, 1, generator=generator, device=real.device)
        penalty = gradient_penalty(critic, torch.lerp(fake, real, share))
        self._update(self.optimisers[0], self.penalty * penalty - distance)
        return torch.stack([distance.detach().float(), penalty.detach().float()])

    def _update_generator(self, count: int, generator: torch.Generator) -> None:
        """Update G once against the frozen critic."""
        critic = self.networks.critic.requires_grad_(False)
        scores = critic(self.networks.generator(self._draw(count, generator))).float()
        self._update(self.optimisers[1], -scores.mean())
        critic.requires_grad_(True)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, self.networks.generator.latent, generator=generator, device=generator.device)

    @staticmethod
    def _update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimiser.step()
        torch.clear_autocast_cache()  # in bf16 it holds the weights from before the update


def gradient_penalty(critic: nn.Module, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, ""]:
    """Return the mean over samples of (|grad D(x)| - 1)^2, differentiable in D's parameters."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    norms: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return (norms - 1).square().mean()
