"""Maximum likelihood: training reaches a known entropy; one step equals Adam and a running average."""

import copy
import math
from typing import Any

import pytest
import torch

from soap.models.pixelcnn import PixelCNN
from soap.shapes import Tensor
from soap.training import GenerativeSchedule
from soap.training.objectives import Likelihood


def schedule(**changes: Any) -> GenerativeSchedule:
    settings = {"lr": 1e-3, "betas": (0.95, 0.9995), "warmup_steps": 4, "average": 0.9995, **changes}
    return GenerativeSchedule(epochs=1, **settings)


def model(**options: float) -> PixelCNN:
    torch.manual_seed(0)
    settings = {"channels": 4, "blocks": 1, "mixtures": 2, **options}
    return PixelCNN(inputs=(1, 3, 3), **settings)  # type: ignore[arg-type]


def pictures(batch: int = 8, seed: int = 0) -> Tensor:
    return torch.rand(batch, 1, 3, 3, generator=torch.Generator().manual_seed(seed))


def weights(network: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_training_reaches_the_entropy_of_a_known_distribution() -> None:
    """The first pixel is bright with probability 0.8 and the second equals it with probability 0.9.

    The entropy is the lower bound of any normalised likelihood.
    """

    def entropy(p: float) -> float:
        return -(p * math.log2(p) + (1 - p) * math.log2(1 - p))

    torch.manual_seed(0)
    objective = Likelihood(
        PixelCNN(inputs=(1, 1, 2), channels=8, blocks=1, mixtures=1, levels=2), schedule(lr=0.03, warmup_steps=10)
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(150):
        first = torch.rand(256, generator=generator) < 0.8
        second = first ^ (torch.rand(256, generator=generator) < 0.1)
        metrics = objective.step(torch.stack([first, second], 1)[:, None, None].float(), generator, step / 150)
    assert metrics["bits_per_dim"].shape == ()
    assert not metrics["bits_per_dim"].requires_grad
    every = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])[:, None, None]
    truth = torch.tensor([0.8 * 0.9, 0.8 * 0.1, 0.2 * 0.9, 0.2 * 0.1])
    with torch.no_grad():
        bits = float(truth @ objective.product().bits_per_dim(every))
    least = (entropy(0.8) + entropy(0.1)) / 2
    assert least <= bits < least + 0.02


def test_step_equals_adam_and_updates_the_average() -> None:
    network, pace = model(), schedule(average=0.3)
    plain = copy.deepcopy(network)
    optimiser = torch.optim.Adam(plain.parameters(), betas=pace.betas, foreach=False)
    objective = Likelihood(network, pace)
    average = weights(plain)
    for step, progress in enumerate((0.0, 0.25, 0.5)):
        x = pictures(seed=step)
        metrics = objective.step(x, torch.Generator(), progress)
        bits = plain.bits_per_dim(x).mean()
        optimiser.zero_grad()
        bits.backward()
        optimiser.param_groups[0]["lr"] = pace.lr * (step + 1) / 4 * (1 + math.cos(math.pi * progress)) / 2
        optimiser.step()
        keep = min(0.3, (1 + step) / (10 + step))
        average = [keep * a + (1 - keep) * p for a, p in zip(average, weights(plain), strict=True)]
        torch.testing.assert_close(metrics["bits_per_dim"], bits.detach())
        torch.testing.assert_close(weights(network), weights(plain), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weights(objective.product()), average, rtol=1e-4, atol=1e-5)


def test_learning_rate_after_warm_up() -> None:
    objective = Likelihood(model(), schedule(warmup_steps=0))
    objective.step(pictures(), torch.Generator(), 1 / 3)
    assert float(objective.optimisers[0].param_groups[0]["lr"]) == pytest.approx(1e-3 * 0.75)


def test_product_is_frozen_and_in_evaluation_mode() -> None:
    objective = Likelihood(model(dropout=0.5), schedule())
    objective.step(pictures(), torch.Generator(), 0.0)
    objective.networks.train()
    product = objective.product()
    assert not any(module.training for module in product.modules())
    assert not any(parameter.requires_grad for parameter in product.parameters())


def test_resumed_objective_ends_with_the_same_weights() -> None:
    """The networks' tensors and the optimiser's state suffice. The seed of each step is set, as in the loop."""

    def steps(objective: Likelihood, which: range) -> None:
        for step in which:
            torch.manual_seed(step)
            objective.step(pictures(seed=step), torch.Generator().manual_seed(step), step / 6)

    whole = Likelihood(model(dropout=0.2), schedule())
    steps(whole, range(6))
    first = Likelihood(model(dropout=0.2), schedule())
    steps(first, range(3))
    held = copy.deepcopy(first.networks.state_dict()), copy.deepcopy(first.optimisers[0].state_dict())
    second = Likelihood(model(dropout=0.2), schedule())
    second.networks.load_state_dict(held[0])
    second.optimisers[0].load_state_dict(held[1])
    steps(second, range(3, 6))
    assert same(weights(whole.networks), weights(second.networks))


def test_step_does_not_change_images_or_random_state() -> None:
    x, objective, state = pictures(), Likelihood(model(), schedule()), torch.get_rng_state()
    objective.step(x, torch.Generator(), 0.0)
    assert torch.equal(x, pictures())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.gpu
def test_training_in_half_precision_on_a_gpu() -> None:
    objective = Likelihood(model(channels=16).cuda(), schedule(lr=0.01, warmup_steps=2))
    generator, x = torch.Generator("cuda").manual_seed(0), pictures(32).cuda()
    bits = []
    for step in range(30):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            bits.append(objective.step(x, generator, step / 30)["bits_per_dim"])
    assert bits[0].is_cuda
    assert torch.stack(bits)[-5:].mean() < bits[0]
