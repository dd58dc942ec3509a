"""The rule `relaxed`: values stay, rounding and cuts of the graph count as the identity, the rest is differentiated."""

import numpy as np
import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.evaluation.plan import plan_attempts, strongest_rule
from soap.evaluation.protocols import Threat
from soap.gradient_rules import Relaxed

SIDE = 6
FEATURES = SIDE * SIDE


def mixing(seed=0):
    """A linear map of all pixels, whose Jacobian is known."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(FEATURES, FEATURES, generator=generator, dtype=torch.float64) / FEATURES**0.5


W = mixing()
MIXED_AGAIN = mixing(1)


def mixed(x, matrix=W):
    return (x.flatten(1) @ matrix.T).reshape(x.shape)


def without_gradient(x):
    with torch.no_grad():
        return mixed(x)


@torch.no_grad()
def decorated(x):
    return mixed(x)


def rounded_in_place(x):
    return mixed(x.clone().mul_(3).round_().div_(3))


STEPS = {
    "rounding": lambda x: mixed((x * 3).round() / 3),
    "floor": lambda x: mixed(torch.floor(x * 8) / 8),
    "ceil": lambda x: mixed(x.mul(8).ceil() / 8),
    "in place": rounded_in_place,
    "detached": lambda x: mixed(x).detach(),
    "detached input": lambda x: mixed(x.detach()),
    "data": lambda x: mixed(x.data),
    "no_grad": without_gradient,
    "no_grad as a decorator": decorated,
    "comparison": lambda x: mixed((x > 0.5).double()),
    "reversed comparison": lambda x: mixed(1 - (x < 0.5).to(x.dtype)),
    "bytes": lambda x: mixed((x * 1).to(torch.int32).to(torch.int64).double() + 0 * x.detach()),
    "divided integers": lambda x: mixed(torch.div((x * 7).int(), 7).double()),
    "where": lambda x: mixed(torch.where(x > 0.5, torch.ones_like(x), torch.zeros_like(x))),
}
"""Purifiers whose gradient is that of `mixed` once every step is the identity."""


@pytest.mark.parametrize("name", STEPS)
def test_steps_count_as_the_identity_and_values_stay(name):
    purify = STEPS[name]
    x = noise_images(3, side=SIDE).double()
    rule = Relaxed(nn.Flatten(), purify)
    expected = purify(x.clone()).detach().flatten(1)
    point = x.clone().requires_grad_()
    logits = rule(point)
    torch.testing.assert_close(logits.detach(), expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad((logits * 2).sum(), point)
    torch.testing.assert_close(gradient.flatten(1), (2 * W.sum(0)).expand(3, -1), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(rule(x), expected, rtol=1e-12, atol=1e-12)
    assert torch.is_grad_enabled()


def test_two_layers_are_differentiated_around_a_step():
    purify = lambda x: mixed((mixed(x) * 5).round() / 5, MIXED_AGAIN)  # noqa: E731
    point = noise_images(2, side=SIDE).double().requires_grad_()
    (gradient,) = torch.autograd.grad(Relaxed(nn.Flatten(), purify)(point).sum(), point)
    expected = (MIXED_AGAIN @ W).sum(0).expand(2, -1)
    torch.testing.assert_close(gradient.flatten(1), expected)


def foreign(x):
    return torch.from_numpy(np.round(mixed(x.double()).detach().numpy(), 2)).to(x.dtype)


@pytest.mark.parametrize(
    ("purify", "exact", "relaxed"),
    [
        (lambda x: 0.5 * x, True, False),
        (lambda x: (0.5 * x).detach(), False, True),
        (lambda x: (x * 4).round() / 4, False, True),
        (foreign, False, False),
        (soap.purifiers.BitDepth(bits=2), False, False),  # it declares straight-through
    ],
)
def test_the_probe_finds_whether_the_rule_applies(purify, exact, relaxed):
    x = noise_images(8, side=SIDE)
    network = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 4)).eval()
    defence = soap.Defence(network, purify)
    probe = defence.probe(x)
    assert (probe.exact, probe.relaxed) == (exact, relaxed)
    assert ("relaxed" in defence.rules(probe)) is relaxed
    assert "relaxed" not in defence.rules()
    planned = plan_attempts(defence, Threat(eps=0.1), "full", probe=probe)
    assert ("relaxed" in {attempt.protocol for attempt in planned}) is relaxed
    if relaxed:
        assert strongest_rule(defence, probe) == "relaxed"
        assert {one.rule for one in planned if one.protocol == "autoattack"} == {"bare", "relaxed"}


class RoundsInside(nn.Module):
    """A network that rounds its input in its own forward pass."""

    def __init__(self):
        super().__init__()
        self.network = tiny_model().eval()

    def forward(self, x):
        return self.network((x.detach() * 3).round() / 3)


def test_a_module_that_cuts_its_own_graph_is_attacked_through_the_rule():
    defence = soap.Defence.of_module(RoundsInside())
    x = noise_images(8)
    probe = defence.probe(x)
    assert probe.relaxed
    planned = plan_attempts(defence, Threat(eps=0.1), "quick", probe=probe)
    relaxed = [attempt for attempt in planned if attempt.protocol == "relaxed"]
    assert relaxed
    seen = relaxed[0].seen(defence)
    x_adv = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=3)(seen, x, defence.labels(x))
    assert (x_adv != x).any()


def test_a_detached_denoiser_is_broken_as_if_it_were_not_detached():
    """Straight-through ignores what the purifier does to a perturbation; the rule does not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 3)).double().eval()
    turn = torch.linalg.qr(W).Q  # a rotation, so the gradient at the purified point has another direction
    purify = lambda x: 0.5 + (x - 0.5).flatten(1).matmul(turn.T).reshape(x.shape)  # noqa: E731
    x = 0.5 + 0.1 * (noise_images(60, side=SIDE).double() - 0.5)
    defence = soap.Defence(network, lambda x: purify(x).detach())
    y = defence.labels(x)
    defence.probe(x)
    attack = soap.attacks.PGD(eps=0.1, step_size=0.02, steps=20, loss="margin")
    left = {
        rule: (defence.labels(attack(defence.seen_by(rule), x, y)) == y).sum().item()
        for rule in ("relaxed", "straight-through")
    }
    differentiable = soap.Defence(network, purify)
    exact = (defence.labels(attack(differentiable.seen_by("exact"), x, y)) == y).sum().item()
    assert left["relaxed"] == exact < left["straight-through"]
