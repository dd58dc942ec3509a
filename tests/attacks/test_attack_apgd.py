"""Auto-PGD against a plain Algorithm 1: its points, its starts, its targets and its use of the model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import APGD, cross_entropy, dlr, margin
from soap.attacks.apgd_state import checkpoints
from soap.balls import row_norms

Problem = tuple[nn.Module, Tensor, Tensor]
LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr}


@dataclass
class Plain:
    """Algorithm 1 for one image, step by step."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    y: Tensor
    eps: float
    norm: str
    steps: int
    rho: float

    def project(self, point: Tensor) -> Tensor:
        delta = point - self.x
        delta = delta.clamp(-self.eps, self.eps) if self.norm == "linf" else delta * min(1.0, self.eps / delta.norm())
        return (self.x + delta).clamp(0, 1)

    def logits_and_gradient(self, point: Tensor) -> tuple[float, Tensor, bool]:
        point = point.clone().requires_grad_()
        logits = self.model(point[None])
        value = self.loss(logits, self.y[None])[0]
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient, int(logits.argmax()) != int(self.y)

    def walk(self, start: Tensor) -> tuple[Tensor, list[float], list[bool], list[Tensor]]:
        """Return the last point, and for all visited points their losses, successes and the points."""
        eta, alpha = 2 * self.eps, 0.75
        x, (f, g, wrong) = start, self.logits_and_gradient(start)
        f_max, x_max, g_max = f, x, g
        losses, fools, points = [f], [wrong], [x]
        x_before, rises, f_max_before, halved = x, 0, None, False
        waypoints, here, gap = set(), 0, max(int(0.22 * self.steps), 1)
        while here < self.steps:
            here += gap
            waypoints.add((here, gap))
            gap = max(gap - max(int(0.03 * self.steps), 1), max(int(0.06 * self.steps), 1))
        for k in range(1, self.steps + 1):
            z = self.project(x + eta * (g.sign() if self.norm == "linf" else g / g.norm().clamp_min(1e-30)))
            x_next = z if k == 1 else self.project(x + alpha * (z - x) + (1 - alpha) * (x - x_before))
            x_before, x = x, x_next
            f_before, (f, g, wrong) = f, self.logits_and_gradient(x)
            losses.append(f)
            fools.append(wrong)
            points.append(x)
            rises += f > f_before
            if f > f_max:
                f_max, x_max, g_max = f, x, g
            for waypoint, distance in waypoints:
                if waypoint == k < self.steps:
                    halved = rises <= self.rho * distance or (not halved and f_max_before == f_max)
                    if halved:
                        eta, x, f, g = eta / 2, x_max, f_max, g_max
                    rises, f_max_before = 0, f_max
        return x, losses, fools, points


@pytest.mark.parametrize(
    ("norm", "eps", "loss", "start", "steps", "rho"),
    [
        ("linf", 0.02, "ce", "random", 7, 0.75),
        ("linf", 0.3, "ce", "random", 30, 0.75),
        ("linf", 0.3, "dlr", "zero", 30, 0.75),
        ("l2", 0.1, "margin", "random", 30, 0.75),
        ("l2", 1.0, "ce", "zero", 30, 0.75),
        ("l2", 1.0, "dlr", "random", 7, 0.75),
        ("linf", 0.5, "ce", "random", 30, 0.0),  # condition 2 only
    ],
)
def test_points_equal_a_slow_reading_of_algorithm_1(
    problem: Problem, recording: Any, norm: str, eps: float, loss: str, start: str, steps: int, rho: float
) -> None:
    model, x, y = problem
    recorded = recording(model)
    trace = APGD(eps=eps, norm=norm, steps=steps, loss=loss, start=start, rho=rho).trace(recorded, x, y)
    starts = recorded.asked[2]  # after the input check and the clean images
    assert torch.equal(starts, x) == (start == "zero")
    for i in range(len(x)):
        plain = Plain(model, LOSSES[loss], x[i], y[i], eps, norm, steps, rho)
        last, losses, fools, points = plain.walk(starts[i])
        assert torch.allclose(trace.last[i], last, atol=1e-9)
        assert torch.allclose(trace.loss_curve[:, i], torch.tensor(losses, dtype=x.dtype), atol=1e-9)
        # The clean image counts as the first point.
        value, _, wrong = plain.logits_and_gradient(x[i])
        losses, fools, points = [value, *losses], [wrong, *fools], [x[i], *points]
        candidates = [k for k in range(len(points)) if fools[k]] or range(len(points))
        assert torch.allclose(trace.x[i], points[max(candidates, key=losses.__getitem__)], atol=1e-9)
        assert trace.fooled_at[i] == (max(fools.index(True) - 1, 0) if any(fools) else -1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_step_sizes_shrink_at_an_optimum_inside_the_ball(norm: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 0.5 + 0.1 * torch.rand(10, 12, dtype=torch.float64, generator=generator)
    peak = x + 0.02 * torch.randn(10, 12, dtype=torch.float64, generator=generator).clamp(-2, 2)
    y = torch.zeros(10, dtype=torch.long)

    def hill(point: Tensor) -> Tensor:
        """The margin of class 1 over class 0 is highest, with value -1, at the peak of the sample."""
        distance = (point - peak[: len(point)]).square().sum(1)
        return torch.stack([torch.ones_like(distance), -100 * distance], 1)

    attack = APGD(eps=0.05 if norm == "linf" else 0.2, norm=norm, loss="margin")
    trace = attack.trace(hill, x, y)
    short_of_peak = -1 - trace.loss_curve.amax(0)
    assert ((short_of_peak >= 0) & (short_of_peak < 1e-3)).all()
    assert (trace.x - peak).abs().amax() < 1e-3
    stubborn = replace(attack, rho=0.0).trace(hill, x, y)  # halved by condition 2 only, every other time
    assert (-1 - stubborn.loss_curve.amax(0)).mean() > 10 * short_of_peak.mean()


def test_checkpoints() -> None:
    assert list(checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]  # as in the paper
    assert list(checkpoints(10)) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == {1: 1}
    for steps in range(1, 300):
        passed = 0
        for here, distance in checkpoints(steps).items():
            assert here - distance == passed
            passed = here
        assert steps - max(0.22 * steps, 1) < passed <= steps


def test_random_start_is_on_the_surface_of_the_ball(problem: Problem, recording: Any) -> None:
    model, _, y = problem
    x = torch.full((16, 1, 6, 6), 0.5, dtype=torch.float64) + torch.arange(16)[:, None, None, None] / 1e3

    def start(**settings: Any) -> Tensor:
        recorded = recording(model)
        APGD(steps=1, **settings)(recorded, x, y)
        return recorded.asked[2] - x

    cube = start(eps=0.1)
    assert torch.allclose(cube.flatten(1).abs().amax(1), torch.tensor(0.1, dtype=x.dtype))
    assert 0.04 < cube.abs().mean() < 0.06  # the other coordinates are uniform
    sphere = start(eps=0.1, norm="l2")
    assert torch.allclose(row_norms(sphere), torch.tensor(0.1, dtype=x.dtype))
    # A Gaussian's mean size is sqrt(2 / pi) of its root mean square; a uniform number's would be 0.87 of it.
    assert 0.76 < sphere.abs().mean() / sphere.square().mean().sqrt() < 0.83
    assert sphere.mean().abs() < 3 * sphere.std() / sphere.numel() ** 0.5
    for drawn in (cube, sphere):
        assert len(drawn.unique(dim=0)) == 16
    assert not torch.equal(start(eps=0.1, seed=1), cube)


def test_every_run_has_its_own_random_start(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    x, y = x[:14], y[:14]
    recorded = recording(model)
    APGD(eps=1e-4, steps=1, restarts=2, loss="targeted-margin", targets=2)(recorded, x, y)
    assert recorded.sizes == [8, 14, *[14, 14] * 4]
    starts = recorded.asked[2::2]
    assert len(torch.stack(starts).unique(dim=0)) == 4
    recorded = recording(model)
    APGD(eps=1e-4, steps=1, restarts=2, start="zero")(recorded, x, y)
    assert torch.equal(recorded.asked[2], x)
    assert not torch.equal(recorded.asked[4], x)


def test_targets_are_the_most_probable_wrong_classes(problem: Problem) -> None:
    model, x, y = problem
    x, y = x[:14], y[:14]
    second, third = model(x).topk(3).indices[:, 1:].unbind(1)

    class Watched(nn.Module):
        """A model with its own gradient rule; records which class raises the loss most."""

        def __init__(self) -> None:
            super().__init__()
            self.aims: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            return logits

        def logits_and_gradient(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                logits = model(x).detach().requires_grad_()
                (gradient,) = torch.autograd.grad(criterion(logits).sum(), logits)
            self.aims.append(gradient.argmax(1))
            return logits.detach(), torch.zeros_like(x)

    watched = Watched()
    APGD(eps=1e-4, steps=1, loss="targeted-margin", targets=2)(watched, x, y)
    assert all(torch.equal(aim, second) for aim in watched.aims[:2])
    assert all(torch.equal(aim, third) for aim in watched.aims[2:])
    watched.aims.clear()
    APGD(eps=1e-4, steps=1, loss="targeted-margin")(watched, x, y)  # nine targets are requested, three exist
    assert len(watched.aims) == 3 * 2


def test_a_models_own_gradient_rule_is_used_once_per_step(problem: Problem) -> None:
    model, x, y = problem

    class Hidden(nn.Module):
        """Logits without gradient; its own rule gives the true gradient."""

        looks = 0

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            return logits

        def logits_and_gradient(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            self.looks += 1
            with torch.enable_grad():
                point = x.detach().requires_grad_()
                logits = model(point)
                (gradient,) = torch.autograd.grad(criterion(logits).sum(), point)
            return logits.detach(), gradient

    hidden = Hidden()
    attack = APGD(eps=0.02, steps=15)
    assert torch.equal(attack(hidden, x, y), attack(model, x, y))
    assert hidden.looks == 16
