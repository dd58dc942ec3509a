"""Balls against closed forms: projection gives the nearest point, the steepest step the best unit step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from soap.balls import L1, L2, Ball, Linf, row_norms, sparse_sign

BALLS = pytest.mark.parametrize("kind", [Linf, L2, L1], ids=["linf", "l2", "l1"])

ORDER, DUAL = {Linf: torch.inf, L2: 2, L1: 1}, {Linf: 1, L2: 2, L1: torch.inf}


def length(delta: Tensor, kind: type[Ball]) -> Tensor:
    return torch.linalg.vector_norm(delta.flatten(1), ord=ORDER[kind], dim=1)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SEEDS = st.integers(0, 2**31)


@BALLS
@settings(max_examples=30)
@given(seed=SEEDS, eps=st.just(0.0) | st.floats(1e-3, 3))
def test_projection_gives_the_nearest_point_of_the_ball(kind: type[Ball], seed: int, eps: float) -> None:
    delta = draw(seed, 4, 2, 3)
    projected = kind(eps).project(delta)
    assert (length(projected, kind) <= eps * (1 + 1e-12)).all()
    within = length(delta, kind) <= eps
    assert torch.equal(projected[within], delta[within])
    # Projection onto a convex set: the angle to every point of the set is at least 90 degrees.
    inside = draw(seed + 1, 4, 2, 3)
    inside = inside * (eps / length(inside, kind)).reshape(4, 1, 1)
    assert (((delta - projected) * (inside - projected)).flatten(1).sum(1) <= 1e-9).all()


@BALLS
@settings(max_examples=20)
@given(seed=SEEDS)
def test_steepest_step_gains_the_dual_norm(kind: type[Ball], seed: int) -> None:
    gradient = draw(seed, 4, 2, 3)
    step = kind(1.0).steepest(gradient)
    assert torch.allclose(length(step, kind), torch.ones(4, dtype=torch.float64))
    dual = torch.linalg.vector_norm(gradient.flatten(1), ord=DUAL[kind], dim=1)
    assert torch.allclose((step * gradient).flatten(1).sum(1), dual)


@BALLS
def test_zero_gradient_gives_no_step(kind: type[Ball]) -> None:
    assert torch.equal(kind(1.0).steepest(torch.zeros(2, 3)), torch.zeros(2, 3))
    assert torch.equal(kind(0.0).project(torch.tensor([[0.0, 2.0], [0.0, 0.0]])), torch.zeros(2, 2))


@BALLS
def test_every_sample_may_have_its_own_radius(kind: type[Ball]) -> None:
    delta, radii = draw(0, 3, 2, 2), torch.tensor([0.0, 0.5, 9.0], dtype=torch.float64)
    rows = [kind(float(eps)).project(row[None]) for eps, row in zip(radii, delta, strict=True)]
    assert torch.equal(kind(radii).project(delta), torch.cat(rows))
    start = kind(radii).random_start(delta, torch.Generator().manual_seed(0))
    assert (length(start, kind) <= radii * (1 + 1e-12)).all()


@BALLS
def test_random_starts_are_uniform_in_the_ball(kind: type[Ball]) -> None:
    like, eps = torch.zeros(20_000, 3, dtype=torch.float64), 0.7
    generator = torch.Generator().manual_seed(0)
    start = kind(eps).random_start(like, generator)
    assert (length(start, kind) <= eps * (1 + 1e-12)).all()
    # In three dimensions the share within radius r is (r / eps)^3, and the mean is the centre.
    for share in (0.2, 0.5, 0.8):
        within = (length(start, kind) <= eps * share ** (1 / 3)).double().mean()
        assert abs(within - share) < 0.02
    assert start.mean(0).abs().max() < 0.02
    assert not torch.equal(start, kind(eps).random_start(like, generator))
    again = kind(eps).random_start(like, torch.Generator().manual_seed(0))
    assert torch.equal(start, again)


def test_row_norms_are_euclidean() -> None:
    assert torch.equal(row_norms(torch.tensor([[[3.0], [4.0]], [[0.0], [0.0]]])), torch.tensor([5.0, 0.0]))


def test_inputs_are_not_changed() -> None:
    delta = draw(0, 2, 3)
    before = delta.clone()
    for ball in (Linf(0.1), L2(0.1), L1(0.1)):
        ball.project(delta)
        ball.steepest(delta)
        ball.random_start(delta, torch.Generator())
    assert torch.equal(delta, before)


@pytest.mark.parametrize("size", [1e-35, 1e-25, 1e-10, 1.0, 1e25])
def test_steepest_l2_step_has_unit_length_for_any_gradient_size(size: float) -> None:
    """Squares of small gradients underflow; without scaling, a saturated network's gradient gave almost no step."""
    gradient = draw(0, 3, 40).float() * size
    assert row_norms(L2(1.0).steepest(gradient)).tolist() == pytest.approx([1, 1, 1], rel=1e-5)


@BALLS
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nan_and_infinite_coordinates_give_no_step(kind: type[Ball], dtype: torch.dtype) -> None:
    gradient = torch.tensor([[0.0, 0.0, 0.0], [torch.nan, 3.0, 4.0]], dtype=dtype)
    step = kind(1.0).steepest(gradient)
    assert torch.equal(step[0], torch.zeros(3, dtype=dtype))
    assert step[1].tolist() == pytest.approx({Linf: [0, 1, 1], L2: [0, 0.6, 0.8], L1: [0, 0, 1]}[kind], abs=1e-3)


def slow_projection(delta: Tensor, low: Tensor, high: Tensor, eps: float) -> Tensor:
    """The projection of one sample onto the L1 ball and the box, by bisection of the Lagrange multiplier."""

    def shrunk(t: float) -> Tensor:
        return (delta.sign() * (delta.abs() - t).clamp_min(0)).clamp(low, high)

    if shrunk(0.0).abs().sum() <= eps:
        return shrunk(0.0)
    lower, upper = 0.0, float(delta.abs().max())
    for _ in range(200):
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if shrunk(middle).abs().sum() > eps else (lower, middle)
    return shrunk(upper)


@settings(max_examples=60)
@given(seed=SEEDS, eps=st.just(0.0) | st.floats(1e-3, 12), size=st.integers(1, 12), edge=st.booleans())
def test_l1_projection_in_a_box_is_the_slow_one(seed: int, eps: float, size: int, edge: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, size, dtype=torch.float64, generator=generator)
    x = x.round() if edge else x
    delta = draw(seed + 1, 5, size)
    found = L1(eps).project_in_box(delta, -x, 1 - x)
    wanted = torch.stack([slow_projection(d, -o, 1 - o, eps) for d, o in zip(delta, x, strict=True)])
    assert torch.allclose(found, wanted, atol=1e-9)
    assert (found.abs().sum(1) <= eps * (1 + 1e-12)).all()


def test_l1_projection_is_the_optimum_of_a_general_solver() -> None:
    from scipy.optimize import minimize

    x, delta, eps = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), draw(4, 6), 0.9
    # Split into positive and negative parts, so that the L1 norm is linear.
    positive = [(0, float(1 - o)) for o in x] + [(0, float(o)) for o in x]
    solved = minimize(
        lambda z: ((z[:6] - z[6:] - delta.numpy()) ** 2).sum(),
        [0.01] * 12,
        bounds=positive,
        constraints={"type": "ineq", "fun": lambda z: eps - z.sum()},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    found = L1(eps).project_in_box(delta[None], -x[None], 1 - x[None])[0]
    assert found.numpy() == pytest.approx(solved.x[:6] - solved.x[6:], abs=1e-4)


def test_sparse_sign_takes_the_share_of_each_sample() -> None:
    gradient = torch.tensor([[1.0, -4.0, 3.0, 2.0], [1.0, -4.0, 3.0, 2.0], [0.0, 0.0, 0.0, -1.0]])
    steps = sparse_sign(gradient, torch.tensor([0.5, 0.01, 1.0]))
    assert torch.equal(steps, torch.tensor([[0.0, -0.5, 0.5, 0.0], [0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0]]))
