"""MeanOverDraws: closed forms of the mean over noise, fresh and repeatable draws, memory, attacks."""

import random

import numpy as np
import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap._runtime.splitting import autograd_bytes
from soap.attacks import APGD, PGD
from soap.gradient_rules import Exact, MeanOverDraws, StraightThrough, logits_and_gradient
from soap.gradient_rules.random_draws import own_generators

SIGMA = 0.5


class Noisy(nn.Module):
    """A linear map of [batch, 2] with noise before it: logits W (x + sigma n)."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (x + SIGMA * torch.randn_like(x)) @ self.weight.T


def test_mean_gradient_of_a_linear_classifier_after_noise_is_the_closed_form(unchecked_shapes):
    """The gradient of a square: E[2 w.(x + sigma n) w] = 2 (w.x) w, with standard error 2 sigma |w| w / sqrt(draws)."""
    weight = torch.tensor([[1.0, -2.0], [0.5, 1.0]])
    x, draws = torch.tensor([[0.2, 0.7], [0.9, 0.4]]), 1000
    _, gradient = MeanOverDraws(Noisy(weight), draws, seed=1).logits_and_gradient(x, lambda z: z[:, 0].square())
    w = weight[0]
    error = 2 * SIGMA * w.norm() * w.abs() / draws**0.5
    assert ((gradient - 2 * (x @ w)[:, None] * w).abs() < 4 * error).all()


def test_logits_are_the_logarithm_of_the_mean_softmax_of_the_same_draws():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.drawn = []

        def forward(self, x):
            self.drawn.append((x + torch.randn_like(x)).softmax(1).detach())
            return self.drawn[-1].log() + 7 + 0 * x

    model, x = Counted(), torch.rand(3, 4)
    for logits in (MeanOverDraws(model, 5)(x), MeanOverDraws(model, 5).logits_and_gradient(x, lambda z: z[:, 0])[0]):
        torch.testing.assert_close(logits.exp(), torch.stack(model.drawn[-5:]).mean(0))


def test_one_draw_of_a_deterministic_model_keeps_predictions_and_gradients():
    model, x = tiny_model(), noise_images(3)
    mean = MeanOverDraws(model, 1)
    y = torch.tensor([0, 1, 2])
    for loss in (soap.attacks.losses.margin, soap.attacks.losses.cross_entropy):
        expected = logits_and_gradient(model, x, lambda z: loss(z, y))  # noqa: B023
        found = logits_and_gradient(mean, x, lambda z: loss(z, y))  # noqa: B023
        torch.testing.assert_close(found[0], expected[0].log_softmax(1))
        torch.testing.assert_close(found[1], expected[1])


def drawing_models():
    """Return one random model for each source of random numbers."""
    generator, numbers, dice = torch.Generator().manual_seed(0), np.random.default_rng(0), random.Random(0)
    state = np.random.RandomState(0)

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x):
            return x + torch.randn(x.shape, generator=self.generator)

    return {
        "torch": lambda x: x + torch.randn_like(x),
        "numpy": lambda x: x + torch.from_numpy(np.random.randn(*x.shape)).float(),
        "python": lambda x: x + random.gauss(0, 1),
        "module": Keeps(),
        "own torch": lambda x: x + torch.randn(x.shape, generator=generator),
        "own numpy": lambda x: x + float(numbers.normal()),
        "own state": lambda x: x + float(state.normal()),
        "own python": lambda x: x + dice.gauss(0, 1),
    }


@pytest.mark.parametrize("source", list(drawing_models()))
def test_draws_are_new_at_every_call_and_repeat_from_the_seed(source):
    purify, x = drawing_models()[source], noise_images(2)
    rule = StraightThrough(tiny_model(), purify)

    def calls(seed):
        mean = MeanOverDraws(rule, 2, seed)
        return mean, [mean(x), mean(x), mean.logits_and_gradient(x, lambda z: z[:, 0])[0]]

    mean, first = calls(0)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert all(map(torch.equal, first, calls(0)[1]))
    assert not torch.equal(first[0], calls(1)[1][0])
    mean.restart()
    assert torch.equal(mean(x), first[0])


def _state(generator):
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()[1:3]


@pytest.mark.parametrize("source", list(drawing_models()))
def test_all_random_states_are_restored(source, unchecked_shapes):  # beartype draws from Python's generator
    purify, x = drawing_models()[source], noise_images(2)
    model = tiny_model().train()

    def states():
        own = [_state(generator) for generator in own_generators(purify)]
        return repr([state_of(model), own, random.getstate(), np.random.get_state()[1].tolist()])

    before = states()
    mean = MeanOverDraws(StraightThrough(model, purify), 2)
    mean(x)
    mean.logits_and_gradient(x, lambda z: z[:, 0])
    assert states() == before


def test_autograd_differentiates_the_logits_with_the_memory_of_one_draw():
    model, x = Exact(tiny_model(), lambda x: x + 0.2 * torch.randn_like(x)), noise_images(4)
    few, many = (autograd_bytes(MeanOverDraws(model, draws), x) for draws in (1, 8))
    one = autograd_bytes(model, x)
    assert many < few + one
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(MeanOverDraws(model, 6, 3)(point)[:, 0].sum(), point)
    step = 1e-2 * torch.sign(gradient)
    slope = MeanOverDraws(model, 6, 3)(x + step)[:, 0] - MeanOverDraws(model, 6, 3)(x - step)[:, 0]
    torch.testing.assert_close(slope, 2 * (gradient * step).flatten(1).sum(1), rtol=0.05, atol=1e-4)


@pytest.mark.parametrize("attack", [PGD(eps=0.3, step_size=0.05, steps=5), APGD(eps=0.3, steps=5, restarts=2)])
def test_attacks_on_a_mean_over_draws_repeat_from_its_seed(attack):
    defence = soap.Defence(tiny_model(), lambda x: x + 0.2 * torch.randn_like(x))
    x, y = noise_images(4), torch.tensor([0, 1, 2, 3])
    first, again, other = (attack(defence.seen_by("exact", draws=3, seed=seed), x, y) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_mean_over_draws_finds_the_direction_that_one_draw_misses(unchecked_shapes):  # slow with checks
    """A random part ten times the common part of the gradient has mean zero: a share of 1 for many draws."""

    class Misleading(nn.Module):
        def forward(self, x):
            weight = torch.tensor([1.0, 0.0]) + torch.tensor([0.0, 10.0]) * torch.randn(())
            return torch.stack([x @ weight, 0 * x[:, 0]], 1)

    def share(draws):
        _, gradient = MeanOverDraws(Misleading(), draws).logits_and_gradient(x, lambda z: z[:, 0])
        return (gradient[0, 0] / gradient.norm()).item()

    x = torch.full((1, 2), 0.5)
    assert share(1) < 0.5
    assert share(1000) > 0.9


@pytest.mark.parametrize("draws", [0, -1])
def test_a_wrong_number_of_draws_is_an_input_error(draws):
    with pytest.raises(soap.InputError, match="draws"):
        MeanOverDraws(tiny_model(), draws)
