"""The auxiliary-aware attack against the paper's formula."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from soap.attacks import PGD, AuxiliaryAwarePGD, cross_entropy
from soap.auxiliary import JointModel

Problem = tuple[JointModel, Tensor, Tensor]
WALK = {"eps": 0.2, "step_size": 0.05, "steps": 6}


@pytest.fixture
def problem(new_model: Callable[..., JointModel]) -> Problem:
    model = new_model().eval()
    x = torch.rand(16, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_beta_zero_equals_pgd_to_the_last_bit(problem: Problem, keep: str) -> None:
    model, x, y = problem
    aware = AuxiliaryAwarePGD(**WALK, beta=0.0, keep=keep)
    assert torch.equal(aware(model, x, y), PGD(**WALK, keep=keep)(model, x, y))


@pytest.mark.parametrize("beta", [-3.0, 0.5, 100.0])
def test_one_step_increases_the_papers_objective(problem: Problem, beta: float) -> None:
    model, x, y = problem
    point = x.clone().requires_grad_()
    objective = cross_entropy(model(point), y) - beta * model.auxiliary.loss(model, point)
    (gradient,) = torch.autograd.grad(objective.sum(), point)
    x_adv = AuxiliaryAwarePGD(eps=0.2, step_size=0.05, steps=1, beta=beta)(model, x, y)
    assert torch.allclose(x_adv, (x + 0.05 * gradient.sign()).clamp(0, 1))


def test_larger_beta_lowers_the_auxiliary_loss(problem: Problem) -> None:
    model, x, y = problem

    def losses(beta: float) -> tuple[float, float]:
        x_adv = AuxiliaryAwarePGD(**WALK, beta=beta)(model, x, y)
        with torch.no_grad():
            return float(cross_entropy(model(x_adv), y).mean()), float(model.auxiliary.loss(model, x_adv).mean())

    (ce_hostile, aux_hostile), (ce_plain, aux_plain), (ce_aware, aux_aware) = map(losses, (-1e4, 0.0, 1e4))
    assert aux_aware < aux_plain < aux_hostile
    assert ce_plain > max(ce_hostile, ce_aware)
