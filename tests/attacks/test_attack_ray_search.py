"""RayS: its queries, the order of its blocks, and the optimum of a linear model."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import soap
from soap.attacks import HopSkipJump, RayS, fooled
from soap.attacks.ray_search import _blocks
from soap.errors import InputError

Problem = tuple[nn.Module, Tensor, Tensor]


def size(delta: Tensor) -> Tensor:
    return delta.flatten(1).abs().amax(1)


def test_blocks_are_halved_down_to_single_values() -> None:
    blocks = [list(range(6))[block] for block in islice(_blocks(6), 20)]
    single = [[0], [1], [2], [3], [4], [5]]
    assert blocks == [
        [], [0, 1, 2, 3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1], [2, 3], [4, 5], *single, *single, [0]
    ]  # fmt: skip


@pytest.mark.parametrize("queries", [1, 2, 10, 77, 300])
@pytest.mark.parametrize("eps", [None, 1e-4])
def test_a_sample_gets_exactly_its_queries(problem: Problem, recording: Any, queries: int, eps: float | None) -> None:
    model, x, y = problem
    for i in range(3):
        recorded = recording(model)
        x_adv = RayS(eps=eps, queries=queries)(recorded, x[i : i + 1], y[i : i + 1])
        assert sum(recorded.sizes[1:]) == queries  # without the input check
        if eps is None and queries >= 77:
            assert fooled(model, x_adv, y[i : i + 1]).all()


@pytest.mark.parametrize("linear_problem", [2], indirect=True)
def test_it_finds_the_nearest_point_of_a_linear_model(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    logits = model(x)
    nearest = (logits[:, 0] - logits[:, 1]).abs() / (model.weight[0] - model.weight[1]).abs().sum()
    found = size(RayS(eps=None, queries=600)(model, x, y) - x)
    assert (found >= nearest - 1e-12).all()
    assert (found <= nearest + 2e-3).all()


@pytest.mark.parametrize("linear_problem", [2], indirect=True)
@pytest.mark.parametrize("eps", [0.005, 0.02, 0.05])
def test_it_succeeds_exactly_where_the_ball_reaches_the_boundary(linear_problem: Problem, eps: float) -> None:
    model, x, y = linear_problem
    logits = model(x)
    nearest = (logits[:, 0] - logits[:, 1]).abs() / (model.weight[0] - model.weight[1]).abs().sum()
    x_adv = RayS(eps=eps, queries=1000)(model, x, y)
    assert (size(x_adv - x) <= eps + 1e-12).all()
    clear = (nearest - eps).abs() > 2e-3
    assert 0 < (nearest < eps).sum() < len(x)
    assert torch.equal(fooled(model, x_adv, y)[clear], (nearest < eps)[clear])


def test_it_sees_labels_alone(problem: Problem) -> None:
    model, x, y = problem

    def labels(images: Tensor) -> Tensor:
        assert not images.requires_grad
        return 7.0 * nn.functional.one_hot(model(images).argmax(1), 4) - 3.0

    attack = RayS(eps=0.05, queries=200)
    assert torch.equal(attack(model, x, y), attack(labels, x, y))


def test_samples_leave_at_their_first_success(problem: Problem, recording: Any) -> None:
    model, x, y = problem
    recorded = recording(model)
    x_adv = RayS(eps=0.1, queries=200)(recorded, x, y)
    assert fooled(model, x_adv, y).sum() > 10
    assert torch.equal(x_adv[14:], x[14:])  # misclassified from the start
    assert recorded.sizes[:3] == [8, 16, 14]
    assert sum(recorded.sizes[3:]) < 0.7 * 14 * 200


def test_without_success_in_the_ball_the_result_is_the_nearest_point_projected(problem: Problem) -> None:
    model, x, y = problem[0], problem[1][:14], problem[2][:14]
    eps = 0.3 * float(size(RayS(eps=None, queries=200)(model, x, y) - x).min())
    x_adv = RayS(eps=eps, queries=200)(model, x, y)
    assert not fooled(model, x_adv, y).any()
    assert torch.allclose(size(x_adv - x), torch.full((14,), eps, dtype=x.dtype))


def test_targeted_search_reaches_the_target_class_or_returns_the_image(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    target = (y + 1) % model.out_features
    x_adv = RayS(eps=None, queries=400, targeted=True)(model, x, target)
    reached = model(x_adv).argmax(1) == target
    assert torch.equal(x_adv[~reached], x[~reached])
    assert reached.double().mean() > (0.99 if model.out_features == 2 else 0.8)


def test_other_bounds_scale_the_search(problem: Problem) -> None:
    model, x, y = problem
    unit = RayS(eps=0.06, queries=150)(model, x, y)
    wide = RayS(eps=0.12, queries=150, bounds=(-1.0, 1.0))(lambda images: model((images + 1) / 2), 2 * x - 1, y)
    assert torch.allclose(wide, 2 * unit - 1, atol=1e-6)


def test_it_needs_fewer_queries_than_hop_skip_jump() -> None:
    model, digits = soap.load("mnist-cnn-no-def").eval(), soap.data.load("mnist-mini").take(40)
    x, y = digits.x, digits.y
    accuracies = [
        float((~fooled(model, attack(model, x, y), y)).double().mean())
        for attack in (RayS(eps=0.2, queries=300), HopSkipJump(eps=0.2, queries=300))
    ]
    assert accuracies[0] < accuracies[1] - 0.2


@pytest.mark.parametrize("settings", [{"eps": -1.0}, {"eps": 0.1, "queries": 0}])
def test_impossible_settings_raise(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        RayS(**settings)
