"""Ten further flawed defences and evaluations: gradients left unused or falsified, randomness, memory and detectors."""

import hashlib
from typing import Any

import torch
from flaws import Flaw, whole
from small_nets import digits, linear, mlp
from torch import Tensor, nn
from torch.nn import functional as F

from soap.attacks import APGD
from soap.defence import Defence
from soap.detection_scores import Rejection
from soap.evaluation.plan import plan_attempts
from soap.evaluation.protocols import DEFAULT_EFFORT, Attempt, Threat

WIDE = Threat(eps=0.1)
"""A radius at which the attacks break most digits of a linear classifier."""


class Blur(nn.Module):
    """A differentiable purifier: the mean over neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, stride=1, padding=1)


class AddsNoise(nn.Module):
    """A random purifier."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 0.2 * torch.randn_like(x)).clamp(0, 1)


class HashNoise(nn.Module):
    """Noise whose seed is a hash of the image: the same on every call, another one for every other image."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        seeds = [int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:6]) for image in x.detach().numpy()]
        noise = [torch.randn(x[0].shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return self.net(x + 0.1 * torch.stack(noise).to(x.dtype))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor) -> Tensor:
        return logits.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 1e-12 * gradient


class ScaledGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return _Scaled.apply(self.net(x))


class IdentityAtFirst(nn.Module):
    """A purifier that leaves the images of its first call alone, and blurs and rounds those of all others."""

    def __init__(self) -> None:
        super().__init__()
        self.called = False

    def forward(self, x: Tensor) -> Tensor:
        first, self.called = not self.called, True
        return x if first else (8 * F.avg_pool2d(x, 9, stride=1, padding=4)).round() / 8


class QuantisedLogits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).round()


class RemembersFirstBatch(nn.Module):
    """A purifier that maps every image to the nearest of its first call, if one is near."""

    def __init__(self) -> None:
        super().__init__()
        self.known: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.known is None:
            self.known = x.detach().clone()
        known = self.known.to(x.dtype)
        distance, nearest = torch.cdist(x.flatten(1), known.flatten(1), p=torch.inf).min(1)
        return torch.where((distance < 0.25).reshape(-1, 1, 1, 1), known[nearest], x)


class MaskedMember(nn.Module):
    """An ensemble whose second member gives attacks no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + 2 * self.second(x.detach())


class KnowsGradientMode(nn.Module):
    """Returns other logits while gradients are recorded: here a constant more, which no other check notices."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + (5 if torch.is_grad_enabled() else 0)


def rejects_everything() -> Defence:
    return Defence(linear(), reject=Rejection(score=lambda x: torch.ones(len(x)), threshold=0.5), name="rejecting")


def by_protocols(*names: str) -> Any:
    """Attempts of these protocols alone, as for a defence that was not probed."""

    def planned(defence: Defence, own: Threat) -> list[Attempt]:
        return [
            one
            for name in names
            for one in plan_attempts(defence, own, name, effort=DEFAULT_EFFORT.changed(steps=5, queries=40))
        ]

    return planned


def one_draw(defence: Defence, threat: Threat) -> list[Attempt]:
    attack = APGD(eps=threat.eps, steps=5, loss="margin")
    rest = by_protocols("noise")(defence, threat)
    return [*rest, Attempt(protocol="exact", name="apgd margin, 1 draws", attack=attack, rule="exact")]


def with_relaxed(defence: Defence, threat: Threat) -> list[Attempt]:
    """Attempts on a purifier that rounds, so that check 20 has nothing to object to."""
    attack = APGD(eps=threat.eps, steps=5, loss="margin")
    rest = by_protocols("noise", "transfer", "straight-through")(defence, threat)
    return [*rest, Attempt(protocol="relaxed", name="apgd margin", attack=attack, rule="relaxed")]


FURTHER_FLAWS = (
    Flaw(
        "straight-through where exact exists",
        20,
        "FAIL",
        lambda: Defence(linear(), Blur(), name="blurred"),
        by_protocols("noise", "transfer", "straight-through"),
    ),
    Flaw("EOT of one draw", 21, "FAIL", lambda: Defence(linear(), AddsNoise(), name="noisy"), one_draw, tried=True),
    Flaw("hash randomness", 3, "WARN", lambda: whole(HashNoise())),
    Flaw("detector that rejects everything", 15, "FAIL", rejects_everything),
    Flaw("gradient scaled by 1e-12", 6, "FAIL", lambda: whole(ScaledGradient())),
    Flaw(
        "identity on the first call",
        18,
        "WARN",
        lambda: Defence(linear(), IdentityAtFirst(), name="identity at first"),
        with_relaxed,
    ),
    Flaw("quantised logits", 5, "FAIL", lambda: whole(QuantisedLogits())),
    Flaw(
        "overfits the first batch",
        18,
        "WARN",
        lambda: Defence(linear(), RemembersFirstBatch(), name="remembering"),
        by_protocols("noise", "transfer", "straight-through"),
        lambda: digits(75),
        threat=WIDE,
    ),
    Flaw("ensemble with one member masked", 6, "FAIL", lambda: whole(MaskedMember())),
    Flaw("behaves otherwise while gradients are recorded", 3, "FAIL", lambda: whole(KnowsGradientMode())),
)
