"""Auto-PGD: its rules against Algorithm 1 written plainly, what it keeps, and what it asks of a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soap.attacks import APGD, cross_entropy, dlr, fooled, margin, targeted_dlr
from soap.attacks.apgd_walk import checkpoints
from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.errors import InputError

Problem = tuple[nn.Module, Tensor, Tensor]
NewModel = Callable[..., JointModel]
LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr}


@pytest.fixture(scope="module")
def problem(new_model: NewModel) -> Problem:
    """A model in double precision and rows; the last two are misclassified as they are."""
    model = new_model().double().eval()
    x = torch.rand(16, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    return model, x, torch.cat([y[:14], (y[14:] + 1) % 4])


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

    def look(self, point: Tensor) -> tuple[float, Tensor, bool]:
        point = point.clone().requires_grad_()
        logits = self.model(point[None])
        value = self.loss(logits, self.y[None])[0]
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient, int(logits.argmax()) != int(self.y)

    def walk(self, start: Tensor) -> tuple[Tensor, list[float], list[bool], list[Tensor]]:
        """The last point, and of all points visited their losses, whether they fool, and they themselves."""
        eta, alpha = 2 * self.eps, 0.75
        x, (f, g, wrong) = start, self.look(start)
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
            f_before, (f, g, wrong) = f, self.look(x)
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
        ("linf", 0.5, "ce", "random", 30, 0.0),  # condition 2 alone
    ],
)
def test_rows_walk_as_the_algorithm_says(
    problem: Problem, recording: Any, norm: str, eps: float, loss: str, start: str, steps: int, rho: float
) -> None:
    model, x, y = problem
    recorded = recording(model)
    trace = APGD(eps=eps, norm=norm, steps=steps, loss=loss, start=start, rho=rho).trace(recorded, x, y)
    starts = recorded.asked[2]  # after the door and the clean images
    assert torch.equal(starts, x) == (start == "zero")
    for i in range(len(x)):
        plain = Plain(model, LOSSES[loss], x[i], y[i], eps, norm, steps, rho)
        last, losses, fools, points = plain.walk(starts[i])
        assert torch.allclose(trace.last[i], last, atol=1e-9)
        assert torch.allclose(trace.loss_curve[:, i], torch.tensor(losses, dtype=x.dtype), atol=1e-9)
        # The clean image counts: it is the first of all points.
        value, _, wrong = plain.look(x[i])
        losses, fools, points = [value, *losses], [wrong, *fools], [x[i], *points]
        candidates = [k for k in range(len(points)) if fools[k]] or range(len(points))
        assert torch.allclose(trace.x[i], points[max(candidates, key=losses.__getitem__)], atol=1e-9)
        assert trace.fooled_at[i] == (max(fools.index(True) - 1, 0) if any(fools) else -1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_steps_shrink_to_an_optimum_inside_the_ball(norm: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 0.5 + 0.1 * torch.rand(10, 12, dtype=torch.float64, generator=generator)
    peak = x + 0.02 * torch.randn(10, 12, dtype=torch.float64, generator=generator).clamp(-2, 2)
    y = torch.zeros(10, dtype=torch.long)

    def hill(point: Tensor) -> Tensor:
        """The margin of class 1 over class 0 is highest, at -1, where the point is its row's peak."""
        distance = (point - peak[: len(point)]).square().sum(1)
        return torch.stack([torch.ones_like(distance), -100 * distance], 1)

    attack = APGD(eps=0.05 if norm == "linf" else 0.2, norm=norm, loss="margin")
    trace = attack.trace(hill, x, y)
    short_of_peak = -1 - trace.loss_curve.amax(0)
    assert ((short_of_peak >= 0) & (short_of_peak < 1e-3)).all()
    assert (trace.x - peak).abs().amax() < 1e-3
    stubborn = replace(attack, rho=0.0).trace(hill, x, y)  # halved by condition 2 alone, every other time
    assert (-1 - stubborn.loss_curve.amax(0)).mean() > 10 * short_of_peak.mean()


def test_checkpoints() -> None:
    assert list(checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]  # the paper's
    assert list(checkpoints(10)) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == {1: 1}
    for steps in range(1, 300):
        passed = 0
        for here, distance in checkpoints(steps).items():
            assert here - distance == passed
            passed = here
        assert steps - max(0.22 * steps, 1) < passed <= steps


def test_a_random_start_lies_on_the_surface_of_the_ball(problem: Problem, recording: Any) -> None:
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


def test_every_run_starts_elsewhere(problem: Problem, recording: Any) -> None:
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


def test_targets_are_the_likeliest_wrong_classes(problem: Problem) -> None:
    model, x, y = problem
    x, y = x[:14], y[:14]
    second, third = model(x).topk(3).indices[:, 1:].unbind(1)

    class Watched(nn.Module):
        """A model that brings its own rule; notes which class raises the loss most."""

        def __init__(self) -> None:
            super().__init__()
            self.aims: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            return logits

        def look(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
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
    APGD(eps=1e-4, steps=1, loss="targeted-margin")(watched, x, y)  # nine are asked for, three there are
    assert len(watched.aims) == 3 * 2


def test_a_model_with_its_own_rule_is_looked_at_once_a_step_and_not_differentiated(problem: Problem) -> None:
    model, x, y = problem

    class Hidden(nn.Module):
        """Answers without a gradient; its rule gives the true one."""

        looks = 0

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            return logits

        def look(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
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


def test_a_point_that_fools_is_better_than_a_higher_one_that_does_not() -> None:
    class Cliff(nn.Module):
        """Nearly undecided among three classes; past 0.55 one of two is wrong, and the loss of class 0 is lower."""

        def forward(self, x: Tensor) -> Tensor:
            undecided, wrong = x.new_tensor([0.01, 0.0, 0.0]), x.new_tensor([0.0, 0.02, -10.0])
            return torch.where(x[:, :1] > 0.55, wrong, undecided)

        def look(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            return self(x), torch.ones_like(x)

    model, x, y = Cliff(), torch.tensor([[0.5], [0.4]]), torch.tensor([0, 0])
    trace = APGD(eps=0.1, steps=5, start="zero").trace(model, x, y)
    assert trace.loss_curve[0, 0] > trace.loss_curve[1, 0] + 0.3
    assert torch.allclose(trace.x[0], torch.tensor(0.6))
    assert torch.equal(trace.x[1], x[1])  # 0.5 at most: nothing fools, and nothing is higher than the start
    assert trace.fooled_at.tolist() == [1, -1]


def test_a_trace_tells_the_truth(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    attack = APGD(eps=0.02, steps=30, loss="margin")
    recorded = recording(model)
    trace = attack.trace(recorded, x, y)
    assert torch.equal(trace.x, attack(model, x, y))
    assert trace.loss_curve.shape == (31, 16)
    for step, point in enumerate(recorded.asked[2:]):
        assert torch.allclose(trace.loss_curve[step], margin(model(point), y), atol=1e-12)
    assert torch.equal(trace.last, recorded.asked[-1])
    assert torch.equal(trace.fooled_at >= 0, fooled(model, trace.x, y))
    assert (trace.fooled_at[14:] == 0).all()
    stepped = trace.fooled_at > 0
    assert 2 <= stepped.sum() < 14
    for row in stepped.nonzero()[:, 0]:
        at = trace.fooled_at[row]
        assert (trace.loss_curve[:at, row] <= 0).all()
        assert trace.loss_curve[at, row] > 0
    clean = margin(model(x), y)
    assert torch.allclose(margin(model(trace.x), y), torch.maximum(trace.loss_curve.amax(0), clean), atol=1e-12)


def test_a_row_that_a_later_run_fools_is_traced_in_that_run(problem: Problem) -> None:
    model, x, y = problem
    attack = APGD(eps=0.16, norm="l2", steps=1, loss="margin")
    once, often = attack.trace(model, x, y), replace(attack, restarts=8).trace(model, x, y)
    late = (once.fooled_at < 0) & (often.fooled_at >= 0)
    early = once.fooled_at >= 0
    assert late.any()
    assert torch.equal(often.loss_curve[:, early], once.loss_curve[:, early])
    assert (often.loss_curve[:, late].amax(0) > 0).all()
    assert (once.loss_curve[:, late].amax(0) <= 0).all()


@pytest.mark.parametrize("loss", [*LOSSES, "targeted-dlr", "targeted-margin"])
def test_rows_that_leave_when_fooled_are_the_same_rows_for_less(problem: Problem, recording: Any, loss: str) -> None:
    model, x, y = problem
    attack = APGD(eps=0.012, steps=20, loss=loss)
    patient, hasty = recording(model), recording(model)
    stayed = attack.trace(patient, x, y)
    left = replace(attack, leave_when_fooled=True).trace(hasty, x, y)
    assert torch.equal(left.fooled_at >= 0, stayed.fooled_at >= 0)
    assert torch.equal(left.fooled_at >= 0, fooled(model, left.x, y))
    assert torch.equal(left.x[14:], x[14:])
    stands = left.fooled_at < 0
    assert 0 < stands.sum() < 14
    assert torch.allclose(left.x[stands], stayed.x[stands], atol=1e-9)
    assert torch.allclose(left.loss_curve[:, stands], stayed.loss_curve[:, stands], atol=1e-9)
    walked = left.loss_curve.isnan().logical_not()
    assert walked[:, stands].all()
    assert not walked[:, 14:].any()
    gone = ~stands
    gone[14:] = False
    assert (walked[:, gone].sum(0) > left.fooled_at[gone]).all()
    assert (walked[:, gone].sum(0) < 21).any()
    assert sum(hasty.sizes) < sum(patient.sizes)
    assert max(hasty.sizes[2:]) == 14


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    eps=st.floats(0, 0.2),
    steps=st.integers(1, 8),
    norm=st.sampled_from(["linf", "l2"]),
    loss=st.sampled_from([*LOSSES, "targeted-dlr", "targeted-margin"]),
    start=st.sampled_from(["zero", "random"]),
    restarts=st.integers(1, 2),
    leave=st.booleans(),
)
def test_results_are_legal_and_never_worse(
    new_model: NewModel, seed: int, eps: float, steps: int, norm: str, loss: str, start: str, restarts: int, leave: bool
) -> None:
    model = new_model(seed % 100).double().eval()
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, 1, 6, 6, dtype=torch.float64, generator=generator)
    y = torch.randint(4, (5,), generator=generator)
    once = APGD(eps=eps, steps=steps, norm=norm, loss=loss, start=start, leave_when_fooled=leave, seed=seed)
    trace = replace(once, restarts=restarts).trace(model, x, y)
    for point in (trace.x, trace.last):
        assert ((point >= 0) & (point <= 1)).all()
        delta = (point - x).flatten(1)
        assert ((delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)) <= eps + 1e-9).all()
    wrong = fooled(model, trace.x, y)
    assert torch.equal(wrong, trace.fooled_at >= 0)
    for other in (x, trace.last, once(model, x, y)):  # the clean image, the last point, fewer restarts
        assert (wrong | ~fooled(model, other, y)).all()
    if loss in LOSSES:
        height = LOSSES[loss]
        stands = ~wrong
        for other in (x, trace.last):
            assert (height(model(trace.x), y) >= height(model(other), y) - 1e-9)[stands].all()
        assert torch.allclose(height(model(trace.last), y)[stands], trace.loss_curve[-1][stands], atol=1e-9)


def test_best_beats_last_where_the_walk_overshoots(problem: Problem) -> None:
    model, x, y = problem
    trace = APGD(eps=0.3, steps=4).trace(model, x, y)
    best, last = (cross_entropy(model(point), y) for point in (trace.x, trace.last))
    assert (best >= last - 1e-12).all()
    assert (best > last + 1e-3).any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_gradient_that_is_not_finite_moves_nothing_out_of_the_images(problem: Problem, bad: float, norm: str) -> None:
    model, x, y = problem

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            return logits

        def look(self, x: Tensor, criterion: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            gradient = torch.zeros_like(x)
            gradient[..., 0, 0], gradient[..., 1, 1] = bad, 1.0
            return model(x), gradient

    attack = APGD(eps=0.1, steps=8, norm=norm, start="zero")
    trace = attack.trace(Broken(), x, y)
    for point in (trace.x, trace.last):
        assert torch.isfinite(point).all()
        assert torch.equal(point[..., 0, 0], x[..., 0, 0])


def test_a_flat_model_is_left_where_it_is() -> None:
    def flat(x: Tensor) -> Tensor:
        return torch.stack([2 + 0 * x.sum(1), 0 * x.sum(1)], 1)

    x, y = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1])
    trace = APGD(eps=0.1, steps=30, norm="l2", start="zero").trace(flat, x, y)
    assert torch.equal(trace.x, x)
    assert trace.fooled_at.tolist() == [-1, -1, 0]


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_trace_checks_its_input_as_the_attack_does(problem: Problem) -> None:
    model, x, y = problem
    with pytest.raises(InputError, match="divide by 255"):
        APGD(eps=0.1).trace(model, 255 * x, y)
    with pytest.raises(InputError, match="at most 3"):
        APGD(eps=0.1).trace(model, x, y + 2)
    training = model.training
    APGD(eps=0.1, steps=1).trace(model.train(), x, y)
    assert all(module.training for module in model.modules())
    model.train(training)


def test_the_targeted_ratio_is_climbed(problem: Problem) -> None:
    model, x, y = problem
    target = model(x).scatter(1, y[:, None], -torch.inf).argmax(1)
    trace = APGD(eps=0.02, steps=10, loss="targeted-dlr", targets=1, start="zero").trace(model, x, y)
    assert torch.allclose(trace.loss_curve[0], targeted_dlr(model(x), y, target))
    assert torch.allclose(trace.loss_curve[-1], targeted_dlr(model(trace.last), y, target))
    assert (trace.loss_curve.amax(0) > trace.loss_curve[0]).all()
