"""HopSkipJump: its queries, its distances on models with a known nearest point, and that it uses labels alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import Attack, HopSkipJump, fooled
from soap.balls import row_norms
from soap.errors import InputError

Problem = tuple[nn.Module, Tensor, Tensor]
NORMS = ("linf", "l2")


def size(delta: Tensor, norm: str) -> Tensor:
    return row_norms(delta) if norm == "l2" else delta.flatten(1).abs().amax(1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("queries", [1, 2, 10, 40, 300])
@pytest.mark.parametrize("eps", [None, 1e-4])
def test_a_sample_gets_at_most_its_queries(
    problem: Problem, recording: Any, norm: str, queries: int, eps: float | None
) -> None:
    model, x, y = problem
    for i in range(2):
        recorded = recording(model)
        x_adv = HopSkipJump(eps=eps, norm=norm, queries=queries)(recorded, x[i : i + 1], y[i : i + 1])
        asked = sum(recorded.sizes[1:])  # without the input check
        assert asked <= queries
        assert asked >= queries - 30 or queries < 100  # an iteration keeps back what its step and bisection may need
        if eps is None and queries >= 10:
            assert fooled(model, x_adv, y[i : i + 1]).all()


@pytest.mark.parametrize("norm", NORMS)
def test_the_budget_is_per_sample_in_a_batch(problem: Problem, recording: Any, norm: str) -> None:
    model, x, y = problem
    recorded = recording(model)
    HopSkipJump(eps=None, norm=norm, queries=200)(recorded, x[:14], y[:14])
    assert 14 * 170 <= sum(recorded.sizes[1:]) <= 14 * 200
    assert max(recorded.sizes) == 14


@pytest.mark.parametrize(("norm", "dual", "over"), [("linf", 1, 1.15), ("l2", 2, 1.03)])
@pytest.mark.parametrize("linear_problem", [2], indirect=True)
def test_distances_approach_the_nearest_point_of_a_linear_model(
    linear_problem: Problem, norm: str, dual: int, over: float
) -> None:
    model, x, y = linear_problem
    logits = model(x)
    nearest = (logits[:, 0] - logits[:, 1]).abs() / (model.weight[0] - model.weight[1]).norm(dual)
    found = {n: size(HopSkipJump(eps=None, norm=norm, queries=n)(model, x, y) - x, norm) for n in (150, 4000)}
    assert (found[4000] >= nearest - 1e-12).all()
    assert found[4000].median() <= over * nearest.median()
    assert found[150].median() > found[4000].median()


@pytest.mark.parametrize("norm", NORMS)
def test_it_sees_labels_alone(problem: Problem, norm: str) -> None:
    model, x, y = problem

    def labels(images: Tensor) -> Tensor:
        assert not images.requires_grad
        return 7.0 * nn.functional.one_hot(model(images).argmax(1), 4) - 3.0

    attack = HopSkipJump(eps=0.05, norm=norm, queries=300)
    assert torch.equal(attack(model, x, y), attack(labels, x, y))


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.4)])
def test_a_sample_leaves_at_its_first_success_inside_the_ball(
    problem: Problem, recording: Any, norm: str, eps: float
) -> None:
    model, x, y = problem
    recorded = recording(model)
    x_adv = HopSkipJump(eps=eps, norm=norm, queries=500)(recorded, x, y)
    wrong = fooled(model, x_adv, y)
    assert (size(x_adv - x, norm) <= eps + 1e-12).all()
    assert wrong.sum() > 2
    assert torch.equal(x_adv[14:], x[14:])  # misclassified from the start
    assert recorded.sizes[:3] == [8, 16, 14]
    sizes = recorded.sizes[3:]
    assert min(sizes) < 14
    assert sum(sizes) < 0.8 * 14 * 500
    free = HopSkipJump(eps=None, norm=norm, queries=500)(model, x, y)
    assert torch.equal(wrong | (size(free - x, norm) > eps), torch.ones_like(wrong))


def test_without_success_in_the_ball_the_result_is_the_nearest_point_projected(problem: Problem) -> None:
    model, x, y = problem[0], problem[1][:14], problem[2][:14]
    free = HopSkipJump(eps=None, queries=300)(model, x, y)
    eps = 0.5 * float(size(free - x, "linf").min())
    assert torch.allclose(HopSkipJump(eps=eps, queries=300)(model, x, y), x + (free - x).clamp(-eps, eps))


def test_a_sample_without_a_first_adversarial_point_stays(recording: Any) -> None:
    constant = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    nn.init.zeros_(constant[1].weight)
    constant[1].bias.data = torch.tensor([1.5, -0.5])
    recorded = recording(constant)
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(HopSkipJump(eps=0.1, queries=100)(recorded, x, torch.zeros(3, dtype=torch.long)), x)
    assert sum(recorded.sizes[1:]) == 3 * (1 + 25)


@pytest.mark.parametrize("norm", NORMS)
def test_targeted_search_reaches_the_target_class(linear_problem: Problem, norm: str) -> None:
    model, x, y = linear_problem
    target = (y + 1) % model.out_features
    x_adv = HopSkipJump(eps=None, norm=norm, queries=400, targeted=True)(model, x, target)
    assert (model(x_adv).argmax(1) == target).double().mean() > 0.95


def test_other_bounds_scale_the_search(problem: Problem) -> None:
    model, x, y = problem
    unit = HopSkipJump(eps=None, norm="l2", queries=200, seed=1)
    wide = HopSkipJump(eps=None, norm="l2", queries=200, seed=1, bounds=(-1.0, 1.0))

    def median(attack: Attack, of: Any, images: Tensor) -> float:
        found = attack(of, images, y)
        assert ((found >= attack.bounds[0]) & (found <= attack.bounds[1])).all()
        assert fooled(of, found, y).all()
        return float(row_norms(found - images)[:14].median())

    ours = median(unit, model, x)
    assert median(wide, lambda images: model((images + 1) / 2), 2 * x - 1) == pytest.approx(2 * ours, rel=0.2)


@pytest.mark.parametrize(
    "settings", [{"eps": -1.0}, {"eps": 0.1, "norm": "l1"}, {"eps": 0.1, "queries": 0}, {"eps": 0.1, "seed": -1}]
)
def test_impossible_settings_raise(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        HopSkipJump(**settings)
