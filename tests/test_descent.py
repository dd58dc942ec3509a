"""The projected-gradient loop against a slow Algorithm 1 and against losses with a known maximum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soap.balls import L2, Linf
from soap.descent import gradient_steps, iterates, loss_and_gradient, projected_gradient, projected_step
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
def test_projected_gradient_equals_algorithm_1(seed: int, eps: float, gamma: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
    x = torch.rand(3, 1, 2, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(3, (3,), generator=generator)
    found = projected_gradient(
        lambda point: nn.functional.cross_entropy(network(point), y, reduction="none"),
        x,
        ball=Linf(eps),
        step_size=gamma,
        steps=steps,
    )
    assert torch.allclose(found, algorithm_1(network, x, y, eps, gamma, steps), atol=1e-9)


PEAK = torch.tensor([[0.9, 0.2, 0.5], [0.5, 0.5, 0.4]], dtype=torch.float64)


def hill(x: Tensor) -> Tensor:
    """Highest at PEAK."""
    return -(x - PEAK).square().sum(1)


@pytest.mark.parametrize("ball", [Linf(0.15), L2(0.15)], ids=["linf", "l2"])
def test_many_small_steps_end_at_the_point_of_the_ball_nearest_to_the_maximum(ball: Linf | L2) -> None:
    origin = torch.full_like(PEAK, 0.45)
    found = projected_gradient(hill, origin, ball=ball, step_size=0.002, steps=200)
    assert torch.allclose(found, origin + ball.project(PEAK - origin), atol=0.005)


def test_keep_best_returns_the_visited_point_of_highest_loss() -> None:
    # Steps of 0.3 overshoot the maximum at 0.5: the points are 0.45, 0.75, 0.45, 0.75.
    origin = torch.tensor([[0.45], [0.45]], dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return -(x[:, 0] - 0.5).abs()

    last = projected_gradient(loss, origin, ball=Linf(1.0), step_size=0.3, steps=3)
    best = projected_gradient(loss, origin, ball=Linf(1.0), step_size=0.3, steps=3, keep_best=True)
    assert torch.allclose(last, torch.full_like(origin, 0.75))
    assert torch.allclose(best, origin)


def test_keep_best_compares_the_last_point_too() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.sum(1)

    origin = torch.tensor([[0.1, 0.2]])
    found = projected_gradient(loss, origin, ball=Linf(0.3), step_size=0.1, steps=2, keep_best=True)
    assert torch.allclose(found, origin + 0.2)


def test_steps_begin_at_start_and_stay_in_the_ball_around_origin() -> None:
    origin = torch.tensor([[0.5, 0.5]])
    start = torch.tensor([[0.6, 0.4]])
    up = projected_gradient(lambda x: x.sum(1), origin, ball=Linf(0.1), step_size=0.05, steps=1, start=start)
    assert torch.allclose(up, torch.tensor([[0.6, 0.45]]))


def test_points_are_clipped_to_the_given_bounds() -> None:
    origin = torch.tensor([[0.9, -0.9]])
    found = projected_gradient(
        lambda x: x[:, 0] - x[:, 1], origin, ball=Linf(1.0), step_size=0.3, steps=2, bounds=(-1.0, 1.0)
    )
    assert torch.equal(found, torch.tensor([[1.0, -1.0]]))


def test_a_negative_step_size_descends() -> None:
    x = torch.tensor([[0.5, 0.5]])
    down = projected_step(x, torch.tensor([[2.0, -3.0]]), origin=x, ball=Linf(1.0), step_size=-0.1)
    assert torch.allclose(down, torch.tensor([[0.4, 0.6]]))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([0.01, 0.4, 3.0]), l2=st.booleans())
def test_every_point_is_in_ball_and_bounds(seed: int, size: float, l2: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    origin, weight = torch.rand(3, 4, generator=generator), torch.randn(4, generator=generator)
    ball = L2(0.2) if l2 else Linf(0.2)
    found = projected_gradient(lambda x: (x * weight).sin().sum(1), origin, ball=ball, step_size=size, steps=4)
    assert ((found >= 0) & (found <= 1)).all()
    order = 2 if l2 else torch.inf
    assert (torch.linalg.vector_norm(found - origin, ord=order, dim=1) <= 0.2 + 1e-6).all()


def test_loss_and_gradient_gives_no_gradient_to_parameters() -> None:
    model = nn.Linear(3, 1)
    x = torch.rand(4, 3)
    losses, gradient = loss_and_gradient(lambda point: model(point)[:, 0], x)
    assert torch.equal(losses, model(x)[:, 0])
    assert torch.equal(gradient, model.weight.expand(4, 3))
    assert not losses.requires_grad
    assert not gradient.requires_grad
    assert not x.requires_grad
    assert model.weight.grad is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_loss_and_gradient_works_without_grad_mode(mode: type[torch.no_grad]) -> None:
    with mode():
        x = torch.rand(2, 3)
        _, gradient = loss_and_gradient(lambda point: point.square().sum(1), x)
        assert torch.allclose(gradient, 2 * x)


def test_a_loss_without_input_gradient_raises() -> None:
    with pytest.raises(InputError, match=r"no gradient .* differentiable in its input"):
        loss_and_gradient(lambda point: point.detach().sum(1), torch.rand(2, 3))
    network = nn.Linear(3, 1)  # its parameters take gradients, the input does not
    with pytest.raises(InputError, match="carries no gradient"):
        loss_and_gradient(lambda point: network(point.detach())[:, 0], torch.rand(2, 3))


def test_inputs_are_not_modified() -> None:
    origin, start = torch.rand(2, 3), torch.rand(2, 3)
    before = origin.clone(), start.clone()
    projected_gradient(lambda x: x.sum(1), origin, ball=Linf(0.3), step_size=0.1, steps=3, start=start, keep_best=True)
    assert torch.equal(origin, before[0])
    assert torch.equal(start, before[1])


def test_observe_sees_every_point_before_its_step_with_its_loss() -> None:
    seen = []
    last = projected_gradient(
        lambda x: x.sum(1),
        torch.tensor([[0.1]]),
        ball=Linf(1.0),
        step_size=0.25,
        steps=2,
        observe=lambda point, losses: seen.append((point.item(), losses.item())),
    )
    assert seen == [(pytest.approx(0.1), pytest.approx(0.1)), (pytest.approx(0.35), pytest.approx(0.35))]
    assert last.item() == pytest.approx(0.6)


def test_iterates_are_the_points_of_the_loop() -> None:
    origin = torch.tensor([[0.1, 0.9]])
    points = iterates(lambda x: x.sum(1), origin, ball=Linf(0.3), step_size=-0.25, steps=3, start=origin + 0.05)
    expected = torch.tensor([[[0.15, 0.95]], [[0.0, 0.7]], [[0.0, 0.6]], [[0.0, 0.6]]])
    torch.testing.assert_close(torch.stack(points), expected)


def test_stop_ends_the_loop_before_the_next_step() -> None:
    last = projected_gradient(
        lambda x: x.sum(1),
        torch.tensor([[0.1]]),
        ball=Linf(1.0),
        step_size=0.25,
        steps=10,
        stop=lambda point, losses: bool(losses.min() > 0.5),
    )
    assert last.item() == pytest.approx(0.6)


def test_gradient_steps_may_change_the_number_of_points() -> None:
    def split(t: int, points: Tensor, gradient: Tensor) -> Tensor:
        return torch.cat([points + t * gradient, points - t * gradient])

    last = gradient_steps(lambda x: x.sum(1), torch.tensor([[0.0]]), split, steps=2)
    assert last.flatten().tolist() == [3.0, 1.0, -1.0, -3.0]
