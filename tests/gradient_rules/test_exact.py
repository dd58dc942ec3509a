"""Exact: autograd through purifier and classifier, against matrix products, finite differences and plain autograd."""

import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn
from torch.utils.checkpoint import checkpoint

import soap
from soap._runtime.splitting import autograd_bytes
from soap.attacks import APGD, PGD
from soap.gradient_rules import Exact, StraightThrough


def linear_pair():
    """Return a linear classifier B and a linear purifier A, in double precision."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (6, 3))
    classifier = nn.Linear(6, 3, bias=False).double()
    classifier.weight.data = b
    return a, b, classifier


def test_gradient_of_a_linear_purifier_is_the_matrix_product():
    a, b, classifier = linear_pair()
    x = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits, gradient = Exact(classifier, lambda x: x @ a.T).logits_and_gradient(x, lambda z: z[:, 0])
    torch.testing.assert_close(logits, x @ a.T @ b.T)
    torch.testing.assert_close(gradient, (b @ a)[0].expand(4, 6))


def test_gradient_of_a_nonlinear_purifier_agrees_with_finite_differences():
    model = tiny_model(dtype=torch.float64)
    rule = Exact(model, lambda x: x - 0.1 * torch.sin(5 * x))
    assert torch.autograd.gradcheck(rule, noise_images(2, side=8, dtype=torch.float64).requires_grad_())


def test_autograd_through_the_module_gives_the_same_gradient():
    rule, x = Exact(tiny_model(), nn.AvgPool2d(3, 1, 1)), noise_images(3).requires_grad_()
    (by_autograd,) = torch.autograd.grad(rule(x).square().sum(), x)
    logits, gradient = rule.logits_and_gradient(x, lambda z: z.square().sum(1))
    torch.testing.assert_close(gradient, by_autograd)
    assert torch.equal(logits, rule(x.detach()))


def test_a_purifier_without_a_gradient_is_an_input_error():
    with pytest.raises(soap.InputError, match="carries no gradient"):
        Exact(tiny_model(), lambda x: x.detach()).logits_and_gradient(noise_images(2), lambda z: z[:, 0])


def test_the_call_leaves_model_and_random_state():
    model = tiny_model().train()
    before = state_of(model)
    rule = Exact(model, lambda x: x + 0.1 * torch.randn_like(x))
    rule.logits_and_gradient(noise_images(3), lambda z: z[:, 0])
    assert state_of(model) == before


class NoisyDescent(nn.Module):
    """Ten steps of noise and denoising; `checkpointed` keeps only the iterates for the backward pass."""

    def __init__(self, checkpointed):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.denoise = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 1, 3, padding=1))
        self.checkpointed = checkpointed

    def step(self, x):
        return x + 0.1 * self.denoise(x + 0.1 * torch.randn_like(x))

    def forward(self, x):
        for _ in range(10):
            x = checkpoint(self.step, x, use_reentrant=False) if self.checkpointed else self.step(x)
        return x


def test_a_checkpointed_purifier_has_the_same_gradient_in_less_memory():
    model, x = tiny_model(), noise_images(4)
    results, kept = [], []
    for checkpointed in (False, True):
        rule = Exact(model, NoisyDescent(checkpointed))
        with torch.random.fork_rng():
            torch.manual_seed(3)
            results.append(rule.logits_and_gradient(x, lambda z: z.square().sum(1)))
        kept.append(autograd_bytes(rule, x))
    for plain, saved in zip(*results, strict=True):
        torch.testing.assert_close(plain, saved, rtol=0, atol=0)
    assert kept[1] < kept[0] / 3


@pytest.mark.parametrize(
    "attack", [PGD(eps=0.1, step_size=0.02, steps=20, loss="margin"), APGD(eps=0.1, steps=20, loss="margin")]
)
def test_attacks_reach_the_optimum_of_a_linear_defence_with_exact_and_not_with_straight_through(attack):
    """The best perturbation of a linear defence is eps times the sign of the matrix product's difference."""
    a, b, _ = linear_pair()
    x = 0.3 + 0.4 * torch.rand(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.zeros(8, dtype=torch.long)
    two = nn.Linear(6, 2, bias=False).double()
    two.weight.data = b[:2]
    way = b[1] @ a - b[0] @ a
    best = (x @ way) + 0.1 * way.abs().sum()

    def margins(rule):
        x_adv = attack(rule(two, lambda x: x @ a.T), x, y)
        return x_adv @ way

    torch.testing.assert_close(margins(Exact), best)
    assert (margins(StraightThrough) < best - 1e-3).all()
