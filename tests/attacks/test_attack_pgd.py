"""PGD: start, restarts, kept iterate; and FGSM as its single step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import FGSM, PGD, cross_entropy, fooled, margin
from soap.auxiliary import JointModel
from soap.balls import row_norms

Problem = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture
def problem(new_model: Callable[..., JointModel]) -> Problem:
    model = new_model().eval()
    x = torch.rand(16, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return model, x, model(x).argmax(1)


def test_fgsm_is_one_step_of_pgd(problem: Problem) -> None:
    model, x, y = problem
    assert torch.equal(FGSM(eps=0.1)(model, x, y), PGD(eps=0.1, step_size=0.1, steps=1)(model, x, y))
    assert torch.equal(FGSM(eps=0.0)(model, x, y), x)


def test_random_start_is_inside_the_ball_and_not_at_its_centre(problem: Problem) -> None:
    model, x, y = problem
    tiny = 1e-6  # steps too small to change the start visibly
    for norm, eps in (("linf", 0.1), ("l2", 0.5)):
        delta = PGD(eps=eps, step_size=tiny, steps=1, norm=norm, start="random")(model, x, y) - x
        size = delta.abs().flatten(1).amax(1) if norm == "linf" else row_norms(delta)
        assert (size <= eps + 1e-6).all()
        assert (size > eps / 4).all()


def test_seed_determines_the_random_start(problem: Problem) -> None:
    model, x, y = problem
    settings = {"eps": 0.1, "step_size": 0.01, "steps": 1, "start": "random"}
    one, same, other = (PGD(**settings, seed=seed)(model, x, y) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_restarts_never_lose_a_success(problem: Problem, norm: str) -> None:
    model, x, y = problem
    settings = {"eps": 0.03 if norm == "linf" else 0.12, "step_size": 0.1, "steps": 2, "norm": norm}
    once, often = (PGD(**settings, restarts=restarts)(model, x, y) for restarts in (1, 6))
    before, after = fooled(model, once, y), fooled(model, often, y)
    assert (after | ~before).all()
    assert torch.equal(once[before], often[before])
    assert 0 < before.sum() < len(x)


@pytest.mark.parametrize(("loss", "height"), [("ce", cross_entropy), ("margin", margin)])
def test_best_iterate_has_at_least_the_loss_of_the_last_and_the_first(
    problem: Problem, loss: str, height: Callable[[Tensor, Tensor], Tensor]
) -> None:
    model, x, y = problem
    settings = {"eps": 0.3, "step_size": 0.2, "steps": 6, "loss": loss}  # steps so long that they overshoot
    last, best = (height(model(PGD(**settings, keep=keep)(model, x, y)), y) for keep in ("last", "best"))
    assert (best >= last - 1e-6).all()
    assert (best >= height(model(x), y) - 1e-6).all()
    assert (best > last + 1e-3).any()


def test_margin_is_positive_exactly_for_misclassified_samples() -> None:
    logits = torch.tensor([[2.0, 1.0, -1.0], [0.0, 3.0, 1.0]])
    assert torch.equal(margin(logits, torch.tensor([0, 2])), torch.tensor([-1.0, 2.0]))
    wrong = margin(torch.randn(50, 3), torch.arange(50) % 3) > 0
    assert wrong.any()


def test_a_model_may_be_any_callable(problem: Problem) -> None:
    model, x, y = problem
    attack = PGD(eps=0.1, step_size=0.03, steps=3)
    assert torch.equal(attack(lambda images: model(images), x, y), attack(model, x, y))
