"""Attacks on a linear model, away from the bounds, where the best perturbation has a closed form."""

import pytest
import torch
from torch import Tensor, nn

from soap.attacks import APGD, FGSM, PGD, Attack, CarliniWagner, DeepFool, fooled, margin, success
from soap.balls import row_norms

Problem = tuple[nn.Linear, Tensor, Tensor]
EPS = 0.05


def gaps_and_directions(problem: Problem) -> tuple[Tensor, Tensor]:
    """f_k - f_y [batch, classes] and w_k - w_y [batch, classes, features]; infinite and one at k = y."""
    model, x, y = problem
    logits, own = model(x).detach(), torch.nn.functional.one_hot(y, model.out_features).bool()
    gaps = (logits - logits.gather(1, y[:, None])).masked_fill(own, -torch.inf)
    directions = model.weight.detach()[None] - model.weight.detach()[y][:, None]
    return gaps, directions.masked_fill(own[..., None], 1.0)


def highest_margin(problem: Problem, order: float, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """For every sample: the largest margin in the ball of radius `eps`, and whether the second class gives it."""
    gaps, directions = gaps_and_directions(problem)
    reach = gaps + eps * torch.linalg.vector_norm(directions, ord=order, dim=2)
    return reach.amax(1), reach.argmax(1) == gaps.argmax(1)


@pytest.mark.parametrize(
    ("attack", "dual"),
    [
        (PGD(eps=EPS, step_size=EPS / 4, steps=10, loss="margin"), 1),
        (PGD(eps=EPS, step_size=EPS / 4, steps=10, loss="margin", norm="l2"), 2),
        (APGD(eps=EPS, steps=20, loss="margin", start="zero"), 1),
        (APGD(eps=EPS, steps=20, loss="margin", start="zero", norm="l2"), 2),
        (PGD(eps=EPS, step_size=EPS / 4, steps=10, loss="margin", norm="l1"), torch.inf),
    ],
    ids=["pgd-linf", "pgd-l2", "apgd-linf", "apgd-l2", "pgd-l1"],
)
def test_pgd_and_apgd_reach_the_highest_margin_of_the_ball(
    linear_problem: Problem, attack: PGD | APGD, dual: float
) -> None:
    model, x, y = linear_problem
    reached = margin(model(attack(model, x, y)), y)
    highest, by_runner_up = highest_margin(linear_problem, dual)
    assert (reached <= highest + 1e-9).all()
    assert by_runner_up.float().mean() > 0.4
    # Gradient ascent follows the second class; if another class allows a larger margin, it may end lower.
    assert torch.allclose(reached[by_runner_up], highest[by_runner_up], atol=1e-6)


@pytest.mark.parametrize(
    "attack",
    [
        FGSM(eps=EPS),
        PGD(eps=EPS, step_size=EPS / 8, steps=8),
        PGD(eps=EPS, step_size=EPS / 8, steps=16, start="random", restarts=2),
        PGD(eps=EPS, step_size=EPS, steps=3, keep="best"),
        APGD(eps=EPS, steps=20),
        APGD(eps=EPS, steps=20, loss="targeted-margin", start="zero"),
    ],
    ids=["fgsm", "pgd", "pgd-random", "pgd-best", "apgd", "apgd-targeted"],
)
@pytest.mark.parametrize("linear_problem", [2], indirect=True)
def test_sign_attacks_gain_eps_times_the_l1_norm_on_two_classes(linear_problem: Problem, attack: Attack) -> None:
    model, x, y = linear_problem
    gained = margin(model(attack(model, x, y)), y) - margin(model(x), y)
    assert torch.allclose(gained, EPS * (model.weight[0] - model.weight[1]).norm(1))


@pytest.mark.parametrize(("norm", "dual", "eps"), [("linf", 1, 0.02), ("l2", 2, 0.05)])
def test_apgd_with_targeted_loss_finds_the_best_class(
    linear_problem: Problem, norm: str, dual: float, eps: float
) -> None:
    model, x, y = linear_problem
    x_adv = APGD(eps=eps, steps=40, norm=norm, loss="targeted-margin")(model, x, y)
    highest, _ = highest_margin(linear_problem, dual, eps)
    assert 0 < (highest > 0).sum() < len(x)
    assert torch.equal(fooled(model, x_adv, y), highest > 0)
    # Samples with success left before all classes were tried; the others tried the best one.
    stands = highest <= 0
    assert torch.allclose(margin(model(x_adv), y)[stands], highest[stands], atol=1e-6)


@pytest.mark.parametrize("linear_problem", [2], indirect=True)
def test_apgd_reaches_the_optimum_from_a_random_start(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    x_adv = APGD(eps=EPS, steps=60, norm="l2")(model, x, y)
    gained = margin(model(x_adv), y) - margin(model(x), y)
    assert torch.allclose(gained, EPS * (model.weight[0] - model.weight[1]).norm(2), atol=1e-6)


@pytest.mark.parametrize("linear_problem", [2], indirect=True)
@pytest.mark.parametrize("start", ["zero", "random"])
def test_l1_apgd_puts_most_of_its_norm_on_the_best_coordinate(linear_problem: Problem, start: str) -> None:
    model, x, y = linear_problem
    gained = margin(model(APGD(eps=EPS, steps=100, norm="l1", start=start)(model, x, y)), y) - margin(model(x), y)
    best = EPS * (model.weight[0] - model.weight[1]).norm(torch.inf)
    assert (gained <= best + 1e-9).all()
    assert (gained >= 0.9 * best).all()
    assert torch.allclose(gained.median(), best, atol=1e-6)


def test_fgsm_steps_along_the_sign_of_the_cross_entropy_gradient(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    error = model(x).softmax(1) - torch.nn.functional.one_hot(y, model.out_features)
    assert torch.allclose(FGSM(eps=EPS)(model, x, y), x + EPS * (error @ model.weight).sign())


def test_deepfool_steps_straight_to_the_nearest_boundary(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    gaps, directions = gaps_and_directions(linear_problem)
    distance, nearest = (-gaps / row_norms(directions.flatten(0, 1)).reshape(gaps.shape)).min(1)
    x_adv = DeepFool(overshoot=0.02)(model, x, y)
    # 1e-4: every step goes that far past the boundary.
    assert torch.allclose(row_norms(x_adv - x), 1.02 * (distance + 1e-4))
    assert torch.equal(model(x_adv).argmax(1), nearest)


def test_deepfool_with_two_candidates_uses_the_most_probable_class(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    x_adv = DeepFool(candidates=2)(model, x, y)
    gaps, directions = gaps_and_directions(linear_problem)
    runner_up = gaps.argmax(1)
    rows = torch.arange(len(x))
    distance = -gaps[rows, runner_up] / row_norms(directions[rows, runner_up])
    one_step = row_norms(x_adv - x) <= 1.02 * (distance + 1e-4) * (1 + 1e-9)
    assert one_step.all()
    assert fooled(model, x_adv, y).all()


def test_carlini_wagner_finds_the_nearest_boundary(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    gaps, directions = gaps_and_directions(linear_problem)
    distance, nearest = (-gaps / row_norms(directions.flatten(0, 1)).reshape(gaps.shape)).min(1)
    x_adv = CarliniWagner(steps=200, search_steps=6, lr=0.005, initial_c=0.01)(model, x, y)
    assert fooled(model, x_adv, y).all()
    found = row_norms(x_adv - x)
    assert (found >= distance).all()
    # It follows the second class, too: if another boundary is nearer, it may end at the farther one.
    straight = nearest == gaps.argmax(1)
    assert straight.float().mean() > 0.4
    assert found[straight].sum() <= 1.02 * distance[straight].sum()
    assert found.sum() <= 1.06 * distance.sum()


def test_confidence_is_the_margin_of_the_result(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    settings = {"steps": 150, "search_steps": 4, "lr": 0.01, "initial_c": 0.1}
    x_adv = CarliniWagner(confidence=0.5, **settings)(model, x, y)
    left = margin(model(x_adv), y)
    assert (left > 0.5).all()
    assert left.mean() < 0.6
    farther = row_norms(x_adv - x) > row_norms(CarliniWagner(**settings)(model, x, y) - x)
    assert farther.all()


def test_a_projected_sample_is_no_success(linear_problem: Problem) -> None:
    model, x, y = linear_problem
    free = DeepFool()(model, x, y)
    radius = float(row_norms(free - x).median())
    attack = DeepFool(radius=radius * (1 + 1e-3))
    x_adv = attack(model, x, y)
    within = row_norms(free - x) < attack.radius
    assert 0 < within.sum() < len(x)
    assert torch.equal(x_adv[within], free[within])
    assert torch.allclose(row_norms(x_adv - x)[~within], torch.tensor(attack.radius, dtype=x.dtype))
    assert torch.equal(success(model, attack.radius, x, x_adv, y), within)
    assert success(model, None, x, free, y).all()
