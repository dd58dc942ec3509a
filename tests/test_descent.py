"""The walk against a plain, slow reading of Algorithm 1 and against losses whose best point is known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soap.balls import L2, Linf
from soap.descent import advance, ascend, slope
from soap.errors import InputError


def sign(value: float) -> float:
    return (value > 0) - (value < 0)


def algorithm_1(network: nn.Module, x: Tensor, y: Tensor, eps: float, gamma: float, steps: int) -> Tensor:
    """Algorithm 1 line by line: one example, one pixel at a time."""
    found = []
    for example, label in zip(x, y, strict=True):
        pixels = example.flatten().tolist()
        delta = [0.0] * len(pixels)
        for _ in range(steps):
            point = torch.tensor([p + d for p, d in zip(pixels, delta, strict=True)], dtype=x.dtype)
            point = point.reshape(1, *example.shape).requires_grad_()
            nn.functional.cross_entropy(network(point), label[None]).backward()
            for i, slope_i in enumerate(point.grad.flatten().tolist()):
                delta[i] = delta[i] + gamma * sign(slope_i)
                delta[i] = min(max(delta[i], -eps), eps)
                delta[i] = min(max(pixels[i] + delta[i], 0.0), 1.0) - pixels[i]
        found.append(torch.tensor([p + d for p, d in zip(pixels, delta, strict=True)], dtype=x.dtype))
    return torch.stack(found).reshape(x.shape)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    eps=st.sampled_from([0.0, 0.05, 0.1, 0.35]),
    gamma=st.sampled_from([0.03, 0.1, 0.5]),
    steps=st.integers(1, 5),
)
def test_ascend_is_algorithm_1(seed: int, eps: float, gamma: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
    x = torch.rand(3, 1, 2, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(3, (3,), generator=generator)
    walked = ascend(
        lambda point: nn.functional.cross_entropy(network(point), y, reduction="none"),
        x,
        ball=Linf(eps),
        step_size=gamma,
        steps=steps,
    )
    assert torch.allclose(walked, algorithm_1(network, x, y, eps, gamma, steps), atol=1e-9)


PEAK = torch.tensor([[0.9, 0.2, 0.5], [0.5, 0.5, 0.4]], dtype=torch.float64)


def hill(x: Tensor) -> Tensor:
    """Highest at PEAK."""
    return -(x - PEAK).square().sum(1)


@pytest.mark.parametrize("ball", [Linf(0.15), L2(0.15)], ids=["linf", "l2"])
def test_a_walk_ends_at_the_nearest_point_to_the_peak_in_the_ball(ball: Linf | L2) -> None:
    origin = torch.full_like(PEAK, 0.45)
    walked = ascend(hill, origin, ball=ball, step_size=0.002, steps=200)
    assert torch.allclose(walked, origin + ball.project(PEAK - origin), atol=0.005)


def test_the_best_visited_point_is_kept() -> None:
    # Steps of 0.3 overshoot the peak at 0.5: the walk is 0.45, 0.75, 0.45, 0.75 ... and back.
    origin = torch.tensor([[0.45], [0.45]], dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return -(x[:, 0] - 0.5).abs()

    last = ascend(loss, origin, ball=Linf(1.0), step_size=0.3, steps=3)
    best = ascend(loss, origin, ball=Linf(1.0), step_size=0.3, steps=3, keep_best=True)
    assert torch.allclose(last, torch.full_like(origin, 0.75))
    assert torch.allclose(best, origin)


def test_the_last_point_may_be_the_best() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.sum(1)

    origin = torch.tensor([[0.1, 0.2]])
    walked = ascend(loss, origin, ball=Linf(0.3), step_size=0.1, steps=2, keep_best=True)
    assert torch.allclose(walked, origin + 0.2)


def test_a_walk_starts_where_it_is_told_and_stays_around_its_origin() -> None:
    origin = torch.tensor([[0.5, 0.5]])
    start = torch.tensor([[0.6, 0.4]])
    up = ascend(lambda x: x.sum(1), origin, ball=Linf(0.1), step_size=0.05, steps=1, start=start)
    assert torch.allclose(up, torch.tensor([[0.6, 0.45]]))


def test_bounds_are_kept_and_may_be_others() -> None:
    origin = torch.tensor([[0.9, -0.9]])
    walked = ascend(lambda x: x[:, 0] - x[:, 1], origin, ball=Linf(1.0), step_size=0.3, steps=2, bounds=(-1.0, 1.0))
    assert torch.equal(walked, torch.tensor([[1.0, -1.0]]))


def test_a_negative_step_descends() -> None:
    x = torch.tensor([[0.5, 0.5]])
    down = advance(x, torch.tensor([[2.0, -3.0]]), origin=x, ball=Linf(1.0), step_size=-0.1)
    assert torch.allclose(down, torch.tensor([[0.4, 0.6]]))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([0.01, 0.4, 3.0]), l2=st.booleans())
def test_every_point_is_in_ball_and_bounds(seed: int, size: float, l2: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    origin, weight = torch.rand(3, 4, generator=generator), torch.randn(4, generator=generator)
    ball = L2(0.2) if l2 else Linf(0.2)
    walked = ascend(lambda x: (x * weight).sin().sum(1), origin, ball=ball, step_size=size, steps=4)
    assert ((walked >= 0) & (walked <= 1)).all()
    order = 2 if l2 else torch.inf
    assert (torch.linalg.vector_norm(walked - origin, ord=order, dim=1) <= 0.2 + 1e-6).all()


def test_slope_gives_losses_and_gradients_and_leaves_parameters_alone() -> None:
    model = nn.Linear(3, 1)
    x = torch.rand(4, 3)
    losses, gradient = slope(lambda point: model(point)[:, 0], x)
    assert torch.equal(losses, model(x)[:, 0])
    assert torch.equal(gradient, model.weight.expand(4, 3))
    assert not losses.requires_grad
    assert not gradient.requires_grad
    assert not x.requires_grad
    assert model.weight.grad is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_slope_works_where_gradients_are_off(mode: type[torch.no_grad]) -> None:
    with mode():
        x = torch.rand(2, 3)
        _, gradient = slope(lambda point: point.square().sum(1), x)
        assert torch.allclose(gradient, 2 * x)


def test_a_loss_without_gradient_is_an_error() -> None:
    with pytest.raises(InputError, match=r"no gradient .* differentiable in its input"):
        slope(lambda point: point.detach().sum(1), torch.rand(2, 3))
    network = nn.Linear(3, 1)  # its parameters take gradients, the input does not
    with pytest.raises(InputError, match="carries no gradient"):
        slope(lambda point: network(point.detach())[:, 0], torch.rand(2, 3))


def test_inputs_are_not_changed() -> None:
    origin, start = torch.rand(2, 3), torch.rand(2, 3)
    before = origin.clone(), start.clone()
    ascend(lambda x: x.sum(1), origin, ball=Linf(0.3), step_size=0.1, steps=3, start=start, keep_best=True)
    assert torch.equal(origin, before[0])
    assert torch.equal(start, before[1])
