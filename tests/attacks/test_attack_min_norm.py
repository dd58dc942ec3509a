"""Minimum-norm attacks: results without success, the radius, and the paper's success rate."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import CarliniWagner, DeepFool, fooled, success
from soap.auxiliary import JointModel
from soap.balls import row_norms

Problem = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture
def problem(new_model: Callable[..., JointModel]) -> Problem:
    model = new_model().eval()
    x = torch.rand(16, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return model, x, model(x).argmax(1)


class Fixed(nn.Module):
    """Always predicts the same class; `slope` is the gradient of its logits."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        total = self.slope * x.flatten(1).sum(1)
        return torch.stack([5 - total, total - 5], dim=1)


@pytest.mark.parametrize("slope", [0.0, 1e-3])
def test_carlini_wagner_returns_the_image_without_success(slope: float) -> None:
    x = torch.rand(3, 4)
    attack = CarliniWagner(steps=10, search_steps=2)
    assert torch.equal(attack(Fixed(slope), x, torch.zeros(3, dtype=torch.long)), x)


def test_deepfool_returns_its_last_point_without_success() -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(3, dtype=torch.long)
    assert torch.equal(DeepFool(steps=3)(Fixed(0.0), x, y), x)  # no gradient, no step
    assert torch.equal(DeepFool(steps=3)(Fixed(1e-3), x, y), torch.ones(3, 4))  # the corner of the box


def test_carlini_wagner_increases_c_until_success(problem: Problem) -> None:
    model, x, y = problem
    weak = {"steps": 40, "lr": 0.05, "initial_c": 1e-4}
    # Samples close to a boundary are broken by Adam's first step for every c.
    assert fooled(model, CarliniWagner(**weak, search_steps=1)(model, x, y), y).double().mean() < 0.5
    assert fooled(model, CarliniWagner(**weak, search_steps=6)(model, x, y), y).all()


def test_carlini_wagner_bisection_finds_nearer_points(problem: Problem) -> None:
    model, x, y = problem
    strong = {"steps": 60, "lr": 0.05, "initial_c": 100.0}
    near = [row_norms(CarliniWagner(**strong, search_steps=k)(model, x, y) - x) for k in (1, 3, 6)]
    assert (near[1] <= near[0] + 1e-6).all()
    assert (near[2] <= near[1] + 1e-6).all()
    assert near[2].mean() < near[0].mean()


def plain_carlini_wagner(model: nn.Module, x: Tensor, y: Tensor, settings: CarliniWagner) -> Tensor:
    """The attack on one image at a time, with autograd through tanh and torch's own Adam."""
    found = []
    for image, label in zip(x, y.tolist(), strict=True):
        c, low, high = settings.initial_c, 0.0, float("inf")
        best, nearest = image, float("inf")
        for _ in range(settings.search_steps):
            start = torch.atanh((2 * image - 1) * 0.999999)
            w = start.clone().requires_grad_()
            adam = torch.optim.Adam([w], lr=settings.lr)
            lowest, checks, fools = float("inf"), [float("inf")] * 2, False
            for step in range(settings.steps):
                point = (torch.tanh(w) + 1) / 2
                logits = model(point[None])[0]
                others = max(logits[k] for k in range(len(logits)) if k != label)
                lacking = torch.clamp(logits[label] - others + settings.confidence, min=0)
                loss = (point - (torch.tanh(start) + 1) / 2).square().sum() + c * lacking
                adam.zero_grad()
                loss.backward()
                adam.step()
                distance = float((point.detach() - image).norm())
                if others - logits[label] > settings.confidence:
                    fools = True
                    if distance < nearest:
                        best, nearest = point.detach(), distance
                lowest = min(lowest, float(loss.detach()))
                if step % (settings.steps // 10) == 0:
                    if lowest > 0.9999 * checks[-2]:
                        break
                    checks.append(lowest)
            if fools:
                high = c
            else:
                low = c
            c = (low + high) / 2 if high < float("inf") else 10 * c
        found.append(best)
    return torch.stack(found)


@pytest.mark.parametrize("confidence", [0.0, 0.1])
def test_carlini_wagner_equals_a_plain_loop(new_model: Callable[..., JointModel], confidence: float) -> None:
    model = new_model().double().eval()
    x = torch.rand(3, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    attack = CarliniWagner(steps=30, search_steps=4, lr=0.05, initial_c=0.1, confidence=confidence)
    assert torch.allclose(attack(model, x, y), plain_carlini_wagner(model, x, y, attack), atol=1e-7)


def test_carlini_wagner_moves_pixels_at_the_bounds() -> None:
    # At 0 and 1 the inverse of tanh is infinite.
    model = nn.Linear(8, 2, dtype=torch.float64)
    x = (torch.arange(32) % 2).reshape(4, 8).double()
    y = model(x).argmax(1)
    x_adv = CarliniWagner(steps=300, search_steps=7, lr=0.1)(model, x, y)
    assert torch.isfinite(x_adv).all()
    reachable = fooled(model, DeepFool()(model, x, y), y)
    assert (fooled(model, x_adv, y) >= reachable).all()


@pytest.mark.parametrize("kind", [CarliniWagner, DeepFool])
def test_radius_changes_only_samples_outside_it(problem: Problem, kind: type[CarliniWagner] | type[DeepFool]) -> None:
    model, x, y = problem
    settings = {"steps": 40} if kind is DeepFool else {"steps": 40, "lr": 0.05, "initial_c": 1.0}
    free = kind(**settings)(model, x, y)
    norms = row_norms(free - x)
    radius = float(norms.sort().values[8]) * 1.0001
    bounded = kind(**settings, radius=radius)(model, x, y)
    outside = norms > radius
    assert 0 < outside.sum() < len(x)
    assert torch.equal(bounded[~outside], free[~outside])
    assert torch.allclose(row_norms(bounded - x)[outside], torch.tensor(radius))
    # The projection keeps the direction.
    ratio = (radius / norms[outside]).reshape(-1, 1, 1, 1)
    assert torch.allclose((bounded - x)[outside], (free - x)[outside] * ratio, atol=1e-6)


def test_success_does_not_change_the_model(new_model: Callable[..., JointModel]) -> None:
    model, x, y = new_model().train(), torch.rand(4, 1, 6, 6), torch.arange(4)
    before, state = {name: tensor.clone() for name, tensor in model.state_dict().items()}, torch.get_rng_state()
    counted = success(model, 1.0, x, x, y)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert torch.equal(counted, model.eval()(x).argmax(1) != y)  # evaluation mode: no dropout, no batch statistics


def test_success_needs_a_wrong_label_and_a_norm_below_the_radius() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        model.bias.copy_(torch.tensor([-0.5, 0.5]))  # class 0 if the first coordinate is above 1/2
    x = torch.tensor([[0.9, 0.5]]).repeat(5, 1)
    y = torch.tensor([0, 0, 0, 0, 1])
    x_adv = torch.tensor([[0.45, 0.5], [0.4, 0.5], [0.3, 0.5], [0.6, 0.5], [0.9, 0.5]])
    # inside and wrong; on the sphere; outside; inside and correct; wrong from the start
    assert success(model, 0.5, x, x_adv, y).tolist() == [True, False, False, False, True]
    assert success(model, None, x, x_adv, y).tolist() == [True, True, True, False, True]
