"""Balls against closed forms: projection gives the nearest point, the steepest step the best unit step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from soap.balls import L2, Ball, Linf, row_norms

BALLS = pytest.mark.parametrize("kind", [Linf, L2], ids=["linf", "l2"])


def length(delta: Tensor, kind: type[Ball]) -> Tensor:
    return delta.flatten(1).abs().amax(1) if kind is Linf else delta.flatten(1).square().sum(1).sqrt()


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
    dual = torch.linalg.vector_norm(gradient.flatten(1), ord=1 if kind is Linf else 2, dim=1)
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
    assert (length(start, kind) <= radii).all()


@BALLS
def test_random_starts_are_uniform_in_the_ball(kind: type[Ball]) -> None:
    like, eps = torch.zeros(20_000, 3, dtype=torch.float64), 0.7
    generator = torch.Generator().manual_seed(0)
    start = kind(eps).random_start(like, generator)
    assert (length(start, kind) <= eps).all()
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
    for ball in (Linf(0.1), L2(0.1)):
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
    assert step[1].tolist() == pytest.approx([0, 1, 1] if kind is Linf else [0, 0.6, 0.8], abs=1e-3)
