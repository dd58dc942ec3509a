"""Logits of points that an attack proposes again."""

import torch
from torch import nn

from soap.attacks import Square
from soap.gradient_rules import known_points
from soap.gradient_rules.known_points import KnownPoints


class Counted(nn.Module):
    """A linear classifier that counts images."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).requires_grad_(False)
        self.images = 0

    def forward(self, x):
        self.images += len(x)
        return self.linear(x)


def test_only_new_points_reach_the_model():
    model, x = Counted(), torch.rand(6, 1, 8, 8)
    known = KnownPoints(model)
    wanted = model.linear(x)
    assert torch.equal(known(x), wanted)
    mixed = torch.cat([x[3:5], torch.rand(1, 1, 8, 8), x[:1], x[:1]])
    torch.testing.assert_close(known(mixed), model.linear(mixed))
    assert model.images == 7


def test_a_point_twice_in_a_batch_is_computed_once():
    model, x = Counted(), torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(KnownPoints(model)(x.repeat(3, 1, 1, 1)), model.linear(x.repeat(3, 1, 1, 1)))
    assert model.images == 1


def test_gradients_come_from_the_model():
    model, x = Counted(), torch.rand(2, 1, 8, 8, requires_grad=True)
    known = KnownPoints(model)
    known(x.detach())
    (gradient,) = torch.autograd.grad(known(x).sum(), x)
    assert gradient.abs().sum() > 0
    assert model.images == 4


def test_points_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(known_points, "MAX_POINTS", 3)
    model = Counted()
    known = KnownPoints(model)
    for _ in range(5):
        known(torch.rand(2, 1, 8, 8))
    assert len(known._logits) <= 5


def test_square_finds_the_same_points():
    torch.manual_seed(0)
    model, x = Counted(), torch.rand(5, 1, 8, 8)
    y, attack = model.linear(x).argmax(1), Square(eps=0.05, queries=300)
    wanted, asked = attack(model, x, y), model.images
    model.images = 0
    assert torch.equal(attack(KnownPoints(model), x, y), wanted)
    assert model.images < asked
