"""Noise, and AutoAttack with the interface of our attacks."""

import builtins
import subprocess
import sys

import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.attacks.autoattack import AutoAttack
from soap.attacks.noise import Noise


class Threshold(nn.Module):
    """Class 1 if the first pixel is above `at`: the success probability of a random point is known."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def forward(self, x):
        lead = x.flatten(1)[:, :1] - self.at
        return torch.cat([-lead, lead], 1)


def test_noise_keeps_the_first_misclassified_draw():
    x, y = torch.full((400, 1, 4, 4), 0.5), torch.zeros(400, dtype=torch.int64)
    x[:, 0, 3, 3] = torch.linspace(0, 1, 400)  # draws depend on the image values: equal images would have equal draws
    one = Noise(eps=0.2, draws=1)(Threshold(0.6), x, y)
    many = Noise(eps=0.2, draws=30)(Threshold(0.6), x, y)
    share = (one[:, 0, 0, 0] > 0.6).float().mean().item()
    assert share == pytest.approx(0.25, abs=0.08)  # a quarter of [0.3, 0.7] is above 0.6
    assert (many[:, 0, 0, 0] > 0.6).float().mean() > 0.98  # 1 - 0.75^30
    kept = one[:, 0, 0, 0] > 0.6
    assert torch.equal(one[kept], many[kept])


def _tilted() -> tuple[nn.Module, torch.Tensor, torch.Tensor, float]:
    """Ten linear classes of which only the first two share a boundary, at a known Linf distance."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(-50.0)
        model[1].weight[0], model[1].weight[1] = 1.0, -1.0
        model[1].bias[:2] = torch.tensor([-8.0, 8.0])
    x = torch.full((6, 1, 4, 4), 0.5) + 0.1
    return model, x, torch.zeros(6, dtype=torch.int64), 0.1  # logits +-16 * 0.1: all 16 pixels must decrease by 0.1


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_noise_is_inside_ball_and_bounds(norm):
    x = noise_images(20)
    delta = Noise(eps=0.3, norm=norm, draws=3)(tiny_model(), x, torch.zeros(20, dtype=torch.int64)) - x
    size = torch.linalg.vector_norm(delta.flatten(1), ord={"linf": torch.inf, "l2": 2, "l1": 1}[norm], dim=1)
    assert (size <= 0.3 + 1e-6).all()
    assert ((x + delta >= 0) & (x + delta <= 1)).all()
    assert size.min() > 0


@pytest.mark.parametrize("wrong", [{"eps": -1.0}, {"eps": 0.1, "norm": "l3"}, {"eps": 0.1, "draws": 0}])
def test_noise_raises_for_bad_settings(wrong):
    with pytest.raises(soap.InputError):
        Noise(**wrong)


def test_autoattack_finds_adversarial_examples_inside_the_ball():
    pytest.importorskip("pyautoattack")
    model, x, y, reach = _tilted()
    x_adv = AutoAttack(eps=reach * 1.05)(model, x, y)
    assert (model(x_adv).argmax(1) != y).all()
    assert ((x_adv - x).abs() <= reach * 1.05 + 1e-6).all()
    isolated = AutoAttack(eps=reach * 0.95)(model, x, y)
    assert (model(isolated).argmax(1) == y).all()


TRIAL = """
import torch
from soap.attacks import AutoAttack

class Optimises(torch.nn.Linear):
    def forward(self, x):
        with torch.enable_grad():
            torch.autograd.grad(super().forward(x.detach().requires_grad_()).sum(), x.new_ones(1, requires_grad=True),
                                allow_unused=True)
        return super().forward(x)

AutoAttack(eps=0.9)(Optimises(16, 10), torch.rand(4, 16), torch.zeros(4, dtype=torch.int64))
"""


def test_autoattack_prints_nothing():
    """In a separate process: pytest handles logs, and Python prints those without a handler."""
    pytest.importorskip("pyautoattack")
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_autoattack_error_names_the_package_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **further):
        if name == "pyautoattack":
            raise ImportError(name)
        return real(name, *rest, **further)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(soap.InputError, match=r"pyautoattack.*pip install .*\[autoattack\]"):
        AutoAttack(eps=0.1)(tiny_model(), noise_images(2), torch.zeros(2, dtype=torch.int64))
