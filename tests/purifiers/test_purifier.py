"""SOAP against a plain Algorithm 2 and closed forms, and that nothing else changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plain_min_aux, plain_purify
from quadratic import quadratic
from tiny import GRID, TASKS, attacked_digits, noise_images, state_of, tiny_model

import soap
from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.purifiers import Purified
from soap.purifiers.soap import LOSS_TOLERANCE, is_minimal

BUNDLED = ("mnist-fcn-dr", "mnist-cnn-dr")


def share_equal(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).abs() <= 1e-6).float().mean())


@pytest.fixture(scope="module", params=BUNDLED)
def digits(request: pytest.FixtureRequest) -> tuple[JointModel, torch.Tensor, torch.Tensor]:
    model = soap.load(request.param)
    return model, *attacked_digits(model, 60)


@pytest.fixture(scope="module")
def purified(digits: tuple[JointModel, torch.Tensor, torch.Tensor]) -> Purified:
    """All digits, purified with the model's own settings."""
    model, x, _ = digits
    return soap.SOAP(model)(x)


@pytest.fixture(scope="module")
def ends(digits: tuple[JointModel, torch.Tensor, torch.Tensor]) -> list[Purified]:
    """All digits, purified with each radius of the grid alone."""
    model, x, _ = digits
    return [soap.SOAP(model, eps=eps)(x) for eps in model.purification.grid]


def test_every_radius_equals_a_plain_loop(digits, ends):
    model, x, _ = digits
    own = model.purification
    for eps, end in zip(own.grid, ends, strict=True):
        ours = end.x
        plain = plain_purify(model, x, eps, own.step_size, own.steps).detach()
        assert share_equal(ours, plain) >= 0.999, f"eps {eps}"
        assert torch.equal(model(ours).argmax(1), model(plain).argmax(1)), f"eps {eps}"


def test_min_aux_equals_a_plain_loop(digits):
    model, x = digits[0], digits[1][:20]
    own = model.purification
    ours = soap.SOAP(model)(x)
    plain, eps = plain_min_aux(model, x, own.grid, own.step_size, own.steps, LOSS_TOLERANCE)
    assert torch.equal(ours.eps, eps)
    assert share_equal(ours.x, plain) >= 0.999
    assert torch.equal(model(ours.x).argmax(1), model(plain).argmax(1))


def test_an_image_gives_the_same_result_alone_and_in_a_batch(digits, purified):
    model, x, _ = digits
    purify, together = soap.SOAP(model), purified
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    for rows in (torch.arange(25).split(1), shuffled.split(37)):
        for part in rows:
            alone = purify(x[part])
            assert torch.equal(alone.eps, together.eps[part])
            assert torch.equal(model(alone.x).argmax(1), model(together.x[part]).argmax(1))
            assert share_equal(alone.x, together.x[part]) >= 0.999


def test_purification_lowers_the_loss_and_raises_accuracy(digits, purified):
    (model, x, y), out = digits, purified
    assert (out.loss_after <= out.loss_before * (1 + 1e-6)).all()
    torch.testing.assert_close(out.loss_before, model.auxiliary.loss(model, x).detach())
    torch.testing.assert_close(out.loss_after, model.auxiliary.loss(model, out.x).detach())
    before, after = ((model(points).argmax(1) == y).float().mean() for points in (x, out.x))
    assert after > before + 0.3


def test_the_trajectory_ends_at_the_purified_image(digits, purified):
    (model, x, _), out = digits, purified
    path = soap.SOAP(model).trajectory(x, out.eps)
    assert len(path) == model.purification.steps + 1
    assert torch.equal(path[0], x)
    assert share_equal(path[-1], out.x) >= 0.999


@given(
    offsets=st.lists(st.integers(-8, 8), min_size=2, max_size=6),
    radius=st.floats(0.0, 0.5),
    steps=st.integers(1, 8),
)
@settings(max_examples=60)
def test_quadratic_loss_ends_at_the_nearest_reachable_point(offsets, radius, steps):
    gamma = 1 / 16  # exact in binary: whole steps end on the target to the last bit, where sign(0) = 0
    x = torch.full((1, len(offsets)), 0.5, dtype=torch.float64)
    delta = gamma * torch.tensor([offsets], dtype=torch.float64)
    model = quadratic(x + delta)
    out = soap.SOAP(model, eps=radius, step_size=gamma, steps=steps)(x)
    reach = min(radius, steps * gamma)
    torch.testing.assert_close(out.x - x, delta.clamp(-reach, reach), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("grid", "steps", "gradients", "further"),
    [
        (tuple(k / 10 for k in range(11)), 5, 11, 5),  # the paper's grid: not 55 and 11 without sharing
        (tuple(k / 10 for k in range(10, -1, -1)), 5, 11, 5),
        ((0.5,), 5, 5, 1),
        ((0.0,), 5, 0, 1),
        ((0.0, 0.3), 1, 1, 1),
        ((0.05, 0.1), 3, 1 + 2 + 2, 2),
    ],
)
@pytest.mark.parametrize("ask", [soap.SOAP.__call__, soap.SOAP.path], ids=["images", "path"])
def test_radii_share_gradients(ask, grid, steps, gradients, further):
    model, x = quadratic(torch.rand(3, 5)), torch.rand(3, 5)
    ask(soap.SOAP(model, eps="min-aux", step_size=0.1, steps=steps, grid=grid), x)
    assert (model.auxiliary.gradients, model.auxiliary.losses_only) == (gradients, further)


@given(
    task=st.sampled_from(TASKS),
    gamma=st.sampled_from((0.03, 0.1, 0.25, 1.0)),
    steps=st.integers(1, 6),
    grid=st.lists(st.floats(0, 0.7).map(lambda r: round(r, 3)), min_size=1, max_size=5),
    seed=st.integers(0, 100),
)
@settings(max_examples=40)
def test_any_grid_step_size_and_steps_equal_a_plain_loop(task, gamma, steps, grid, seed):
    """In float64, so that rounding does not flip the sign of a gradient near zero."""
    model = tiny_model(task, seed=seed % 7, dtype=torch.float64)
    x = noise_images(2, seed=seed, dtype=torch.float64)
    for eps in grid:
        ours = soap.SOAP(model, eps=eps, step_size=gamma, steps=steps)(x).x
        torch.testing.assert_close(ours, plain_purify(model, x, eps, gamma, steps).detach(), atol=1e-6, rtol=0)
    ours = soap.SOAP(model, grid=tuple(grid), step_size=gamma, steps=steps)(x)
    plain, eps_plain = plain_min_aux(model, x, tuple(grid), gamma, steps, LOSS_TOLERANCE)
    torch.testing.assert_close(ours.eps, eps_plain.double())
    torch.testing.assert_close(ours.x, plain, atol=1e-6, rtol=0)


@given(
    task=st.sampled_from(TASKS),
    eps=st.one_of(st.floats(0, 1), st.sampled_from(("min-aux", "min-aux-batch", "oracle"))),
    training=st.booleans(),
    learning=st.booleans(),
    n=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50)
def test_result_is_valid_and_nothing_else_changes(task, eps, training, learning, n, seed):
    model = tiny_model(task).train(training).requires_grad_(learning)
    x, y = noise_images(n, seed=seed), torch.arange(n) % 4
    before, images = state_of(model), x.clone()
    out = soap.SOAP(model, eps=eps)(x, *([y] if eps == "oracle" else []))
    assert state_of(model) == before
    assert torch.equal(x, images)
    assert not out.x.requires_grad
    assert torch.isfinite(out.x).all()
    assert out.x.min() >= 0
    assert out.x.max() <= 1
    assert ((out.x - x).abs().flatten(1).amax(1) <= out.eps + 1e-6).all()
    if eps == 0:
        assert torch.equal(out.x, x)


def test_oracle_is_correct_if_any_radius_is(digits, ends):
    model, x, y = digits
    right = torch.stack([model(end.x).argmax(1) == y for end in ends])
    oracle = soap.SOAP(model, eps="oracle")(x, y)
    assert torch.equal(model(oracle.x).argmax(1) == y, right.any(0))
    first = torch.tensor(model.purification.grid)[right.to(torch.uint8).argmax(0)]
    solved = right.any(0)
    assert torch.equal(oracle.eps[solved], first[solved])


def test_min_aux_batch_selects_one_radius_by_the_mean_loss(digits, ends):
    model, x, _ = digits
    grid = model.purification.grid
    means = torch.stack([end.loss_after.mean() for end in ends])
    # Radii that never clip have equal losses.
    best = next(k for k, mean in enumerate(means) if mean <= means.min() * (1 + LOSS_TOLERANCE))
    out = soap.SOAP(model, eps="min-aux-batch")(x)
    assert torch.equal(out.eps, torch.full((len(x),), grid[best]))
    assert share_equal(out.x, ends[best].x) >= 0.999
    with pytest.raises(soap.InputError, match=r"whole batch.*max_memory"):
        soap.SOAP(model, eps="min-aux-batch", max_memory=10**9)


def test_min_aux_selects_a_radius_for_negative_losses(digits, purified, monkeypatch):
    """A relative tolerance on negative losses once excluded the minimum itself."""
    model, x, _ = digits
    wanted, loss = purified, model.auxiliary.loss
    monkeypatch.setattr(model.auxiliary, "loss", lambda model, x: loss(model, x) - 1)
    got = soap.SOAP(model)(x)
    assert (got.eps > 0).float().mean() > 0.9
    torch.testing.assert_close(got.loss_after, wanted.loss_after - 1, atol=1e-4, rtol=0)


def test_losses_that_differ_by_rounding_count_as_equal():
    losses = torch.tensor([[3.0, -3.0, 0.0], [3.0, -3.0, 0.0], [3.1, -2.9, 0.1]])
    losses[1] -= 1e-6
    assert is_minimal(losses).tolist() == [[True, True, False], [True, True, True], [False, False, False]]


def test_one_long_step_equals_the_single_step_purifier():
    model, x = tiny_model(), noise_images(3)
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.auxiliary.loss(model, point).sum(), point)
    for eps in (0.1, 0.3):
        expected = (x - eps * gradient.sign()).clamp(0, 1)
        torch.testing.assert_close(soap.SOAP(model, eps=eps, step_size=1.0, steps=1)(x).x, expected)


def test_max_memory_splits_the_batch_with_the_same_result(digits, purified):
    (model, x, _), whole = digits, purified
    bounded = soap.SOAP(model, max_memory=5_000_000)
    with isolated(model):
        assert bounded._rows_at_once(x) < soap.SOAP(model)._rows_at_once(x)
        assert bounded._rows_at_once(x) == bounded._rows_at_once(x[:7].clone())
    part = bounded(x)
    assert torch.equal(part.eps, whole.eps)
    assert share_equal(part.x, whole.x) >= 0.999
    with pytest.raises(soap.InputError, match="max_memory is 1,000 bytes, but one image needs about"):
        soap.SOAP(model, max_memory=1000)(x)


def test_out_of_memory_halves_the_part_and_continues(monkeypatch):
    model, x = tiny_model(), noise_images(9)
    whole = soap.SOAP(model)(x)
    task, sizes = model.auxiliary, []
    loss = task.loss

    def scarce(owner, points):
        sizes.append(len(points))
        if len(points) > 16:
            raise torch.OutOfMemoryError("no room")
        return loss(owner, points)

    monkeypatch.setattr(task, "loss", scarce)
    part = soap.SOAP(model)(x)
    assert max(sizes) > 16
    torch.testing.assert_close(part.x, whole.x)
    assert torch.equal(part.eps, whole.eps)


def test_settings_default_to_those_of_the_model():
    purify = soap.SOAP(tiny_model())
    assert (purify.step_size, purify.steps, purify.grid) == (0.1, 5, GRID)
    assert repr(purify) == f"SOAP(eps='min-aux', grid={GRID}, step_size=0.1, steps=5)"
    assert repr(soap.SOAP(tiny_model(), eps=0.2)) == "SOAP(eps=0.2, step_size=0.1, steps=5)"
