"""Ten defences and attacks, each with one flaw that makes the measured robustness too high or meaningless."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from small_nets import THREAT, digits, hidden, linear, trained, wavy
from torch import Tensor, nn

from soap.attacks import APGD, PGD
from soap.attacks.noise import Noise
from soap.data import Dataset
from soap.data.dataset import make_dataset
from soap.defence import Defence
from soap.evaluation.plan import plan_attempts
from soap.evaluation.protocols import DEFAULT_EFFORT, Attempt, Threat


class CutGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.detach())


@cache
def saturated() -> nn.Module:
    """Units so steep that they are flat wherever an image falls."""
    return trained(hidden(scale=1e6), nn.Tanh())


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.round())


class AddedNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.02 * torch.randn_like(x))


class SoftmaxOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).softmax(1)


def wrong_normalisation() -> Defence:
    """The classifier was trained on normalised digits; what normalises them was given as the purifier."""
    mean, std = 0.5, 0.1
    net = linear()
    last = nn.Linear(784, 10)
    last.weight.data = net[-1].weight.data * std
    last.bias.data = net[-1].bias.data + net[-1].weight.data.sum(1) * mean
    return Defence(nn.Sequential(nn.Flatten(), last), lambda x: (x - mean) / std, name="normalised")


class DetachedPurifier(nn.Module):
    """Smooths the image by gradient steps of its own, which autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            roughness = (point[..., 1:] - point[..., :-1]).square().sum()
            (slope,) = torch.autograd.grad(roughness, point)
        return self.net(x - 0.02 * slope.sign())


class LabelLeak(nn.Module):
    """Knows the test images, and answers with the label of the nearest; lets attacks see the top of the image alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()
        self.x, self.y = digits().x.flatten(1), digits().y

    def forward(self, x: Tensor) -> Tensor:
        known = self.y[torch.cdist(x.detach().flatten(1), self.x).argmin(1)]
        top = torch.cat([x[..., :6, :], torch.zeros_like(x[..., 6:, :])], dim=-2)
        return self.net(top) + 100 * nn.functional.one_hot(known, 10)


class TwoHills(nn.Module):
    """Breaks on a hill behind the image (u < -0.5), while its slope leads to a lower one before it (u = 0.4).

    u in [-1, 1] is how far the mean pixel has gone through the ball around a grey image. A step of two radii goes to
    u = 1, from there to u = -1, and back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        u = (x.flatten(1).mean(1) - 0.5) / THREAT.eps
        height = 2 * (-(((u + 0.8) / 0.3) ** 2)).exp() + 0.5 * (-(((u - 0.4) / 0.3) ** 2)).exp()
        return torch.stack([torch.zeros_like(u), self.scale * (height - 1)], 1)


def grey_images(n: int = 20) -> Dataset:
    """Images around 0.5, told apart by their texture alone."""
    texture = torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x = (0.5 + 0.3 * (texture - texture.flatten(1).mean(1).reshape(-1, 1, 1, 1))).numpy()
    return make_dataset("grey", "test", x, np.zeros(n, np.int64), ("plain", "broken"))


def whole(module: nn.Module) -> Defence:
    return Defence.of_module(module, name=type(module).__name__)


def with_noise(attack: APGD | PGD, protocol: str = "transfer", rule: str = "bare") -> list[Attempt]:
    noise = Noise(eps=THREAT.eps, draws=5)
    return [
        Attempt(protocol="noise", name="random points", attack=noise, rule="defended"),
        Attempt(protocol=protocol, name="the attack", attack=attack, rule=rule),
    ]


@dataclass(frozen=True)
class Flaw:
    """defence: judged; check: the number that should object; planned: attempts other than the quick suite's.

    tried: whether the run knows if the defence is random and its gradient exact.
    """

    name: str
    check: int
    state: str
    defence: Callable[[], Defence]
    planned: Callable[[Defence, Threat], list[Attempt]] = lambda defence, threat: plan_attempts(
        defence, threat, "quick", effort=DEFAULT_EFFORT.changed(steps=5, queries=40)
    )
    data: Callable[[], Dataset] = digits
    threat: Threat = THREAT
    tried: bool = False


FLAWS = (
    Flaw("cut graph", 5, "FAIL", lambda: whole(CutGraph())),
    Flaw("zero gradient by saturation", 5, "FAIL", lambda: whole(saturated())),
    Flaw("rounding", 5, "FAIL", lambda: whole(Rounding())),
    Flaw("added noise", 3, "FAIL", lambda: whole(AddedNoise())),
    Flaw("softmax output", 2, "FAIL", lambda: whole(SoftmaxOutput())),
    Flaw(
        "last iterate only",
        7,
        "WARN",
        lambda: whole(TwoHills()),
        lambda defence, threat: with_noise(PGD(eps=THREAT.eps, step_size=2 * THREAT.eps, steps=3)),
        grey_images,
    ),
    Flaw(
        "too few steps",
        8,
        "WARN",
        lambda: whole(wavy()),
        lambda defence, threat: with_noise(APGD(eps=THREAT.eps, steps=1, start="zero")),
    ),
    Flaw(
        "wrong normalisation",
        15,
        "WARN",
        wrong_normalisation,
        lambda defence, threat: [
            attempt
            for suite in ("noise", "transfer", "straight-through", "exact", "classifier")
            for attempt in plan_attempts(
                defence, threat, suite, probe=defence.probe(digits().x), effort=DEFAULT_EFFORT.changed(steps=5)
            )
            if attempt.name != "autoattack"
        ],
    ),
    Flaw("detached purifier", 4, "WARN", lambda: whole(DetachedPurifier())),
    Flaw("label leak", 10, "FAIL", lambda: whole(LabelLeak())),
)
