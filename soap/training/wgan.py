"""A Wasserstein GAN with gradient penalty (Gulrajani et al. 2017): a generator against its critic.

The critic D learns to tell real images from generated ones, its gradient held near length 1 between the two; the
generator G learns to please it. D's mean difference then estimates how far G's images are from the real ones.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from soap import validate
from soap._runtime import seeding
from soap._runtime.isolation import preserved_random_state
from soap.errors import InputError
from soap.models.wgan import Critic, Generator
from soap.shapes import Float, Tensor
from soap.training.generative import GenerativeSchedule


class Pair(nn.Module):
    """Generator and critic, the running average of the generator, and how many steps were taken."""

    steps: Tensor

    def __init__(self, generator: Generator, critic: Critic) -> None:
        super().__init__()
        self.generator, self.critic = generator, critic
        self.average = copy.deepcopy(generator).requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), device=next(generator.parameters()).device))

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the average, its batch norms' statistics too; faster at first, so that a short training does not lag."""
        share = 1 - ((1 + self.steps) / (10 + self.steps)).clamp(max=decay)
        pairs = zip(self.average.state_dict().values(), self.generator.state_dict().values(), strict=True)
        for kept, new in pairs:
            if kept.is_floating_point():
                kept.lerp_(new, share.to(new.dtype))
            else:  # how many batches a norm has seen
                kept.copy_(new)


class WganGp:
    """The objective of a `Generator`: a step is `critic_steps` updates of the critic and one of the generator.

    A step's batch is dealt out among the updates of the critic, so each sees images of its own. penalty: lambda, the
    weight of (|grad D| - 1)^2. The rate rises over the warm-up and falls linearly to zero. Metrics: "distance", the
    critic's estimate D(real) - D(generated), and "penalty", unweighted.
    """

    compilable = False  # the penalty differentiates a gradient, which torch.compile does not

    def __init__(
        self, generator: Generator, schedule: GenerativeSchedule, *, critic_steps: int = 5, penalty: float = 10.0
    ) -> None:
        validate.at_least("critic_steps", critic_steps, 1)
        validate.positive("penalty", penalty)
        if schedule.batch < critic_steps:
            raise InputError(
                f"batch is {schedule.batch}, want at least critic_steps ({critic_steps}): one image an update."
            )
        with preserved_random_state():
            torch.manual_seed(seeding.seed_for(schedule.seed, 2))
            critic = Critic(width=generator.width, inputs=generator.input_shape)
        # The layout of the weights, not their values: convolutions are faster so.
        critic.to(next(generator.parameters()).device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.networks = Pair(generator, critic)
        self.schedule, self.critic_steps, self.penalty = schedule, critic_steps, penalty
        self.optimisers: Sequence[torch.optim.Adam] = [
            torch.optim.Adam(network.parameters(), lr=schedule.lr, betas=schedule.betas, fused=True)
            for network in (critic, generator)
        ]

    def step(self, x: Float[Tensor, "batch c h w"], generator: torch.Generator, progress: float) -> dict[str, Tensor]:
        """All updates on one batch of real images; nothing waits for the device."""
        if len(x) < self.critic_steps:
            raise InputError(f"got {len(x)} images a step, want at least {self.critic_steps}: one an update of D.")
        schedule, networks = self.schedule, self.networks
        warm = ((networks.steps + 1) / max(1, schedule.warmup_steps)).clamp(max=1)
        for optimiser in self.optimisers:
            optimiser.param_groups[0]["lr"] = warm * (schedule.lr * (1 - progress))
        told = torch.stack([self._teach_critic(real, generator) for real in x.tensor_split(self.critic_steps)])
        self._teach_generator(-(-len(x) // self.critic_steps), generator)
        networks.follow(schedule.average)
        networks.steps += 1
        distance, penalty = told.mean(0)
        return {"distance": distance, "penalty": penalty}

    def product(self) -> Generator:
        """The averaged generator in evaluation mode."""
        return self.networks.average.eval()

    def _teach_critic(self, real: Tensor, generator: torch.Generator) -> Tensor:
        """One update of D; the estimated distance and the penalty."""
        critic = self.networks.critic
        with torch.no_grad():
            fake = self.networks.generator(self._draw(len(real), generator)).to(real.dtype)
        numbers = critic(torch.cat([real, fake])).float()
        distance = numbers[: len(real)].mean() - numbers[len(real) :].mean()
        share = torch.rand(len(real), 1, 1, 1, generator=generator, device=real.device)
        penalty = gradient_penalty(critic, torch.lerp(fake, real, share))
        self._update(self.optimisers[0], self.penalty * penalty - distance)
        return torch.stack([distance.detach().float(), penalty.detach().float()])

    def _teach_generator(self, count: int, generator: torch.Generator) -> None:
        """One update of G, against a critic that takes no gradients meanwhile."""
        critic = self.networks.critic.requires_grad_(False)
        numbers = critic(self.networks.generator(self._draw(count, generator))).float()
        self._update(self.optimisers[1], -numbers.mean())
        critic.requires_grad_(True)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, self.networks.generator.latent, generator=generator, device=generator.device)

    @staticmethod
    def _update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimiser.step()
        torch.clear_autocast_cache()  # in bf16 it would hand out the weights as they were before the update


def gradient_penalty(critic: nn.Module, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, ""]:
    """The mean over rows of (|grad D(x)| - 1)^2, differentiable in D's parameters."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    lengths: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return (lengths - 1).square().mean()
