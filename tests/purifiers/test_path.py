"""SOAP.path and SOAP.route: the iterates of a purification."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import quadratic
from tiny import GRID, TASKS, attacked_digits, noise_images, state_of, tiny_model

import soap


@pytest.mark.parametrize("name", ["mnist-fcn-dr", "mnist-cnn-dr"])
@pytest.mark.parametrize("settings", [{}, {"eps": 0.25}, {"eps": 0.0}, {"eps": "min-aux-batch"}, {"max_memory": 2**24}])
def test_path_ends_at_the_purified_image_to_the_last_bit(name, settings):
    model = soap.load(name)
    x, _ = attacked_digits(model, 24)
    purify = soap.SOAP(model, **settings)
    out, (path, eps) = purify(x), purify.route(x)
    assert path.shape == (6, *x.shape)
    assert torch.equal(path[0], x)
    assert torch.equal(path[-1], out.x)
    assert torch.equal(eps, out.eps)
    assert torch.equal(purify.path(x), path)
    assert len(set(eps.tolist())) > 1 or settings.get("eps") is not None  # several radii occur in one batch


@given(
    task=st.sampled_from(TASKS),
    eps=st.sampled_from(("min-aux", "min-aux-batch", 0.25)),
    gamma=st.sampled_from((0.03, 0.1, 0.25)),
    steps=st.integers(1, 6),
    grid=st.lists(st.sampled_from((0.0, 0.05, 0.1, 0.2, 0.33, 0.5)), min_size=1, max_size=5),
    seed=st.integers(0, 100),
)
@settings(max_examples=30)
def test_iterates_equal_the_trajectory_at_the_selected_radius(task, eps, gamma, steps, grid, seed):
    """In float64, so that rounding does not flip the sign of a gradient near zero."""
    model = tiny_model(task, seed=seed % 7, dtype=torch.float64)
    x = noise_images(3, seed=seed, dtype=torch.float64)
    purify = soap.SOAP(model, eps, step_size=gamma, steps=steps, grid=tuple(grid))
    path, radii = purify.route(x)
    torch.testing.assert_close(path, purify.trajectory(x, radii), atol=1e-6, rtol=0)


def test_iterates_of_a_quadratic_loss_have_a_closed_form():
    gamma, steps, radius = 1 / 16, 5, 3 / 16
    x = torch.full((1, 6), 0.5, dtype=torch.float64)
    delta = gamma * torch.tensor([[-8, -2, 0, 1, 3, 8]], dtype=torch.float64)
    path = soap.SOAP(quadratic(x + delta), radius, step_size=gamma, steps=steps).path(x)
    for t, point in enumerate(path):
        reach = min(radius, t * gamma)
        torch.testing.assert_close(point - x, delta.clamp(-reach, reach), atol=1e-9, rtol=0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_model_and_inputs_do_not_change_in_any_grad_mode(context):
    model = tiny_model().train().requires_grad_(True)
    purify, images = soap.SOAP(model), noise_images(3)
    expected, before = purify.path(images), state_of(model)
    with context():
        x = images.clone()
        path = purify.path(x)
        assert torch.equal(path, expected)
        assert not path.requires_grad
        assert torch.equal(x, images)
    assert state_of(model) == before


def test_out_of_memory_halves_the_part_and_joins_the_paths(monkeypatch):
    model, x = tiny_model(), noise_images(9)
    whole = soap.SOAP(model).path(x)
    task, sizes = model.auxiliary, []
    loss = task.loss

    def scarce(owner, points):
        sizes.append(len(points))
        if len(points) > 16:
            raise torch.OutOfMemoryError("no room")
        return loss(owner, points)

    monkeypatch.setattr(task, "loss", scarce)
    torch.testing.assert_close(soap.SOAP(model).path(x), whole)
    assert max(sizes) > 16


@pytest.mark.parametrize("task", TASKS)
def test_loss_is_twice_differentiable_and_does_not_change_the_model(task):
    model = tiny_model(task, dtype=torch.float64)
    expected = model.auxiliary.loss(model, noise_images(2, dtype=torch.float64))
    model.train().requires_grad_(True)
    before = state_of(model)
    x = noise_images(2, dtype=torch.float64).requires_grad_()
    loss = soap.SOAP(model).loss(x)
    assert torch.equal(loss, expected)  # in evaluation mode
    (first,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.abs().sum() > 0
    assert state_of(model) == before


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("eps", ["min-aux", "min-aux-batch", 0.25])
def test_replayed_path_equals_called_path(task, eps):
    model, x = tiny_model(task).cuda(), noise_images(6).cuda()
    purify = soap.SOAP(model, eps, grid=GRID)
    model.recordable = True
    fast, radii = purify.route(x)
    assert torch.equal(fast[-1], purify(x).x)
    model.recordable = False
    plain, plain_radii = purify.route(x)
    assert torch.equal(fast, plain)
    assert torch.equal(radii, plain_radii)
