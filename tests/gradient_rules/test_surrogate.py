"""Surrogate: an imitation is differentiated in the purifier's place; values stay those of the purifier."""

import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap.attacks import APGD, PGD
from soap.gradient_rules import Exact, Surrogate, fit_surrogate
from soap.gradient_rules.rule import purified_images


def test_logits_are_the_purifiers_and_the_gradient_is_the_imitations():
    model, x = tiny_model(), noise_images(3)
    imitation = nn.AvgPool2d(3, 1, 1)
    rule = Surrogate(model, torch.round, imitation)
    logits, gradient = rule.logits_and_gradient(x, lambda z: z.square().sum(1))
    assert torch.equal(logits, model(x.round()))
    point, at = x.clone().requires_grad_(), x.round().requires_grad_()
    (upstream,) = torch.autograd.grad(model(at).square().sum(), at)
    (expected,) = torch.autograd.grad(imitation(point), point, upstream)
    torch.testing.assert_close(gradient, expected)
    (by_autograd,) = torch.autograd.grad(rule(point).square().sum(), point)
    torch.testing.assert_close(by_autograd, expected)


def test_an_imitation_must_be_a_module():
    with pytest.raises(soap.InputError, match="fit_surrogate"):
        Surrogate(tiny_model(), torch.round, None)


def relative_error(imitation, purifier, x):
    """Return the squared error of the imitation, as a share of that of the identity."""
    wanted = purified_images(purifier, x)
    return ((imitation(x) - wanted).square().mean() / (x - wanted).square().mean()).item()


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_the_imitation_predicts_points_of_the_ball_that_it_was_not_trained_on(kind):
    shape = (60, 1, 8, 8) if kind == "images" else (60, 10)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    mixing = torch.linspace(-0.5, 1, 100).reshape(10, 10) / 10

    def purify(x):
        return nn.functional.avg_pool2d(x, 3, 1, 1).detach() if kind == "images" else (x @ mixing).sigmoid().detach()

    imitation = fit_surrogate(purify, x, eps=0.1, steps=150)
    fresh = (x + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(5)).clamp(-1, 1)).clamp(0, 1)
    assert relative_error(imitation, purify, fresh) < 0.1


def inverted(x):
    """Eight levels of 1 - x: its own gradient is zero, and straight-through points in the opposite direction."""
    return (7 * (1 - x)).round() / 7


@pytest.mark.parametrize("attack", [PGD(eps=0.2, step_size=0.05, steps=20), APGD(eps=0.2, steps=20)])
def test_the_surrogate_breaks_a_rounding_purifier_whose_own_gradient_is_zero(attack):
    """The best attack on a linear classifier is known: a corner of the ball."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 16, generator=generator)
    classifier = nn.Linear(16, 2, bias=False).requires_grad_(False)
    classifier.weight.copy_(weight)
    x = 0.3 + 0.4 * torch.rand(40, 16, generator=generator)
    defence = soap.Defence(classifier, inverted)
    y = defence.labels(x)
    imitation = fit_surrogate(inverted, x, eps=0.2, steps=300, classifier=classifier)

    def robust(x_adv):
        return (defence.labels(x_adv) == y).float().mean().item()

    _, gradient = Exact(classifier, inverted).logits_and_gradient(x, lambda z: z[:, 0])
    assert (gradient == 0).all()
    best = robust(x + 0.2 * (1 - 2 * y)[:, None] * (weight[0] - weight[1]).sign())
    assert best < 0.3
    assert robust(attack(defence.seen_by("surrogate", imitation=imitation), x, y)) <= best + 0.05
    assert robust(attack(defence.seen_by("straight-through"), x, y)) == 1.0


def test_fitting_repeats_changes_no_state_and_calls_the_purifier_the_stated_number_of_times():
    model, x = tiny_model().train(), noise_images(20)
    before, rows = state_of(model), []

    def purify(x):
        rows.append(len(x))
        return (x + 0.1 * torch.randn_like(x)).round()

    first, again = (fit_surrogate(purify, x, eps=0.1, steps=9, classifier=model) for _ in range(2))
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))
    assert state_of(model) == before
    assert sum(rows) == 2 * 7 * len(x)
    assert not any(p.requires_grad for p in first.parameters())
    other = fit_surrogate(purify, x, eps=0.1, steps=9, classifier=model, seed=1)
    assert not torch.equal(other(x), first(x))
    rows.clear()
    fit_surrogate(purify, x, eps=0.5, norm="l2", steps=3)
    assert sum(rows) == 4 * len(x)


@pytest.mark.parametrize("shape", [(2, 3, 9, 5), (2, 1, 3, 3), (2, 4, 32, 32)])
def test_images_of_any_size_have_an_imitation_that_starts_as_the_identity(shape):
    x = torch.rand(shape)
    imitation = fit_surrogate(lambda x: x, x, eps=0.1, steps=1)
    assert torch.equal(imitation(x), x)
