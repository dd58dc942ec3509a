"""Attacks on a linear classifier with a linear detector, where geometry says what can be reached."""

import pytest
import torch
from torch import nn

from soap.attacks import LagrangianPGD, OrthogonalPGD, SelectivePGD
from soap.attacks.detector_aware import orthogonal_part
from soap.errors import InputError

ATTACKS = (LagrangianPGD, SelectivePGD, OrthogonalPGD)
SETTINGS = {"eps": 0.1, "step_size": 0.01, "steps": 40}
X = 0.5 * torch.ones(4, 6, dtype=torch.float64)
Y = torch.zeros(4, dtype=torch.long)


def two_classes(direction):
    """A classifier with margin 2 * direction . (x - 0.5) - 0.1 for class 0: positive where misclassified."""
    model = nn.Linear(6, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.stack([-direction, direction]))
        model.bias.copy_(torch.tensor([0.1, 0.0]) - 0.5 * model.weight.sum(1))
    return model


def along(*coordinates):
    return torch.tensor([float(i in coordinates) for i in range(6)], dtype=torch.float64)


@pytest.mark.parametrize("attack", ATTACKS)
def test_both_goals_are_reached_where_the_directions_are_orthogonal(attack):
    model, detector = two_classes(along(0, 1)), along(2, 3)
    found = attack(**SETTINGS, score=lambda x: (x * detector).sum(1))(model, X, Y)
    assert ((found - X).abs() <= 0.1 + 1e-12).all()
    assert (model(found).argmax(1) == 1).all()
    assert torch.allclose((found * detector).sum(1), torch.full((4,), 0.8, dtype=torch.float64), atol=0.03)  # lowest


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_score_that_equals_the_margin_cannot_be_evaded(attack):
    model, direction = two_classes(along(0, 1)), along(0, 1)
    found = attack(**SETTINGS, score=lambda x: (x * direction).sum(1))(model, X, Y)
    broken = model(found).argmax(1) == 1
    assert ((found * direction).sum(1)[broken] >= 1.05 - 1e-9).all()  # misclassified from there on


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_score_without_a_gradient_is_lowered_through_another_function(attack):
    model, detector = two_classes(along(0, 1)), along(2, 3)
    settings = {"score": lambda x: (x * detector).sum(1).detach().round(decimals=2)}
    with pytest.raises(InputError, match="no gradient"):
        attack(**SETTINGS, **settings)(model, X, Y)
    found = attack(**SETTINGS, **settings, differentiable=lambda x: (x * detector).sum(1))(model, X, Y)
    assert (model(found).argmax(1) == 1).all()
    assert ((found * detector).sum(1) < 0.9).all()


def test_the_orthogonal_part_is_orthogonal_and_complete():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 3, 4, dtype=torch.float64, generator=generator).unbind(0)
    part = orthogonal_part(a, b)
    assert (part * b).flatten(1).sum(1).abs().max() < 1e-12
    share = (a * b).flatten(1).sum(1) / b.flatten(1).square().sum(1)
    assert torch.allclose(part + share[:, None, None] * b, a)
    assert torch.equal(orthogonal_part(a, torch.zeros_like(a)), a)


def test_a_targeted_attack_reaches_its_class():
    model, detector = two_classes(along(0, 1)), along(2)
    attack = SelectivePGD(**SETTINGS, score=lambda x: (x * detector).sum(1), targeted=True)
    assert (model(attack(model, X, Y + 1)).argmax(1) == 1).all()


@pytest.mark.parametrize("bad", [{"eps": -1.0}, {"step_size": 0.0}, {"steps": 0}])
def test_bad_settings(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        SelectivePGD(**{**SETTINGS, **bad}, score=lambda x: x.sum(1))
