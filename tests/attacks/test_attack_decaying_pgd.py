"""PGD with shrinking steps: the optimum of a linear model, also of a noisy one, and its schedule."""

import torch
from torch import Tensor, nn

from soap.attacks import DecayingPGD
from soap.gradient_rules import MeanOverDraws


class NoisyLinear(nn.Module):
    """Two classes; the logit of the second is w x plus noise."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.weight = torch.linspace(-1, 1, 16).reshape(1, 1, 4, 4) + 0.01
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        noisy = self.weight + self.noise * torch.randn_like(x)
        value = (noisy * x).flatten(1).sum(1)
        return torch.stack([-value, value], 1)


def test_it_reaches_the_corner_of_the_ball_of_a_linear_model():
    model, x, y = NoisyLinear(0.0), torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)
    found = DecayingPGD(eps=0.1, steps=20)(model, x, y)
    assert torch.allclose(found, x + 0.1 * model.weight.sign(), atol=1e-6)
    other = DecayingPGD(eps=0.1, steps=20, targeted=True)(model, x, y)
    assert torch.allclose(other, x - 0.1 * model.weight.sign(), atol=1e-6)


def test_it_nears_the_same_corner_under_noise():
    model, x, y = NoisyLinear(1.0), torch.full((8, 1, 4, 4), 0.5), torch.zeros(8, dtype=torch.int64)
    found = DecayingPGD(eps=0.1, steps=60)(MeanOverDraws(model, 8), x, y)
    reached = ((found - x) * model.weight).flatten(1).sum(1) / (0.1 * model.weight.abs().sum())
    assert float(reached.mean()) > 0.8


def test_starts_depend_on_seed_and_sample_alone():
    model, x, y = NoisyLinear(0.0), torch.rand(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)
    attack = DecayingPGD(eps=0.3, steps=1)
    whole = attack(model, x, y)
    assert torch.equal(whole[2:3], attack(model, x[2:3], y[2:3]))
    assert not torch.equal(whole, DecayingPGD(eps=0.3, steps=1, seed=1)(model, x, y))
