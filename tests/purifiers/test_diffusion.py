"""DiffPure: its exact gradient against autograd without checkpoints, its draws, and removal of noise."""

from itertools import pairwise

import pytest
import torch
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap.models.ddpm import DDPM
from soap.purifiers import DiffPure


def tiny_ddpm(dtype=torch.float64):
    torch.manual_seed(0)
    model = DDPM(inputs=(1, 8, 8), width=8, steps=20).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.05)
    return model.eval()


def plain(model, x, times, seed):
    """The whole purifier as one graph, with draws in the same order."""
    torch.manual_seed(seed)
    draw = lambda: torch.randn(x.shape, dtype=x.dtype)  # noqa: E731
    abar = model.abar.double()
    point = abar[times[0]].sqrt() * (2 * x - 1) + (1 - abar[times[0]]).sqrt() * draw()
    for t, s in pairwise(times):
        now, then, alpha = abar[t], abar[s], abar[t] / abar[s]
        start = (point - (1 - now).sqrt() * model(point, torch.full((len(x),), t))) / now.sqrt()
        mean = then.sqrt() * (1 - alpha) / (1 - now) * start + alpha.sqrt() * (1 - then) / (1 - now) * point
        point = mean + ((1 - alpha) * (1 - then) / (1 - now)).sqrt() * draw()
    return ((point + 1) / 2).clamp(0, 1)


@pytest.mark.parametrize(
    ("t_star", "steps", "times"), [(4, 4, [4, 3, 2, 1, 0]), (12, 3, [12, 8, 4, 0]), (7, 1, [7, 0])]
)
def test_images_and_gradient_equal_plain_autograd_with_the_same_draws(t_star, steps, times):
    model, x = tiny_ddpm(), noise_images(3, dtype=torch.float64)
    weights = torch.randn(x.shape, dtype=x.dtype)
    purify = DiffPure(model, t_star=t_star, steps=steps)
    points, gradients = [], []
    for call in (lambda point: plain(model, point, times, 5), lambda point: purify(point).x):
        point = x.clone().requires_grad_()
        torch.manual_seed(5)
        made = call(point)
        torch.manual_seed(99)  # the backward pass must not draw again
        points.append(made.detach())
        gradients.append(torch.autograd.grad((made * weights).sum(), point)[0])
    torch.testing.assert_close(points[1], points[0])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert gradients[0].abs().amax() > 1e-3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradient_equals_central_differences():
    purify, x = DiffPure(tiny_ddpm(), t_star=6, steps=3), noise_images(1, dtype=torch.float64)

    def value(point):
        torch.manual_seed(3)
        return purify(point).x.square().sum()

    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(point), point)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    direction *= (x - 0.5).abs() < 0.4  # away from the bounds of valid images
    h = 1e-6
    difference = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
    assert (gradient * direction).sum().item() == pytest.approx(difference.item(), rel=1e-5)


def test_backward_pass_stores_no_activations_of_the_network():
    model, x = tiny_ddpm(), noise_images(4, dtype=torch.float64).requires_grad_()
    stored = []

    def count(tensor):
        stored.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        DiffPure(model, t_star=8, steps=8)(x)
    assert all(shape in (x.shape, (4,), (4, 1, 1, 1)) for shape in stored)


def test_draws_are_fresh_at_every_call_and_repeat_with_a_seed():
    purify, x = DiffPure(tiny_ddpm(), t_star=5, steps=5), noise_images(2, dtype=torch.float64)
    torch.manual_seed(0)
    first, second = purify(x).x, purify(x).x
    torch.manual_seed(0)
    assert torch.equal(purify(x).x, first)
    assert not torch.equal(first, second)
    before, model = torch.get_rng_state(), purify.model
    own = [DiffPure(model, t_star=5, steps=5, generator=torch.Generator().manual_seed(7))(x).x for _ in range(2)]
    assert torch.equal(*own)
    assert torch.equal(torch.get_rng_state(), before)


class PerfectPrior(nn.Module):
    """Predicts the noise of a known image: the best possible network for a data set of one image."""

    def __init__(self, model, image):
        super().__init__()
        self.abar, self.image = model.abar.double(), image

    def forward(self, x, t):
        abar = self.abar[t.long()].reshape(-1, 1, 1, 1)
        return (x - abar.sqrt() * self.image) / (1 - abar).sqrt()


def test_a_perturbation_that_the_prior_does_not_know_is_removed():
    model, image = tiny_ddpm(), noise_images(1, dtype=torch.float64)
    model.network = PerfectPrior(model, 2 * image - 1)
    attacked = (image + 0.3 * torch.randn(image.shape).sign()).clamp(0, 1)
    out = DiffPure(model, t_star=10, steps=5)(attacked)
    torch.testing.assert_close(out.x, image, rtol=0, atol=1e-4)
    torch.testing.assert_close(out.eps, (attacked - image).abs().amax().reshape(1), rtol=0, atol=1e-4)
    torch.testing.assert_close(out.loss_before, (attacked - image).square().mean().reshape(1), rtol=0, atol=1e-4)
    assert out.loss_after.item() == 0


def test_bundled_model_removes_noise_and_keeps_the_digit():
    prior, data = soap.zoo.load_prior("ddpm-mnist"), soap.data.load("mnist-mini").take(60)
    generator = torch.Generator().manual_seed(0)
    noisy = (data.x + 0.3 * torch.randn(data.x.shape, generator=generator)).clamp(0, 1)
    made = DiffPure(prior, generator=generator, **prior.purification)(noisy).x
    assert (made - data.x).square().mean() < 0.5 * (noisy - data.x).square().mean()
    before, after = ((soap.load("mnist-cnn-no-def")(x).argmax(1) == data.y).float().mean() for x in (noisy, made))
    assert after > max(0.9, before + 0.1)  # 97 % and 70 % on 100 digits
    assert soap.zoo.weights_path("ddpm-mnist").stat().st_size < 5_000_000


def test_model_and_inputs_do_not_change():
    model, x = tiny_ddpm(torch.float32).train(), noise_images(2)
    before = state_of(model)
    point = x.clone().requires_grad_()
    DiffPure(model, t_star=3, steps=3, generator=torch.Generator())(point).x.sum().backward()
    assert state_of(model) == before
    assert torch.equal(point.detach(), x)
    with torch.inference_mode():
        assert DiffPure(model, t_star=3, steps=3)(noise_images(2)).x.shape == x.shape


def test_defence_with_diffpure_can_be_attacked():
    model, x, y = tiny_model(), noise_images(3), torch.arange(3)
    defence = soap.Defence(model, DiffPure(tiny_ddpm(torch.float32), t_star=3, steps=3))
    adversarial = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)(defence, x, y)
    assert 0 < (adversarial - x).abs().max() <= 0.1 + 1e-6


def test_repr_shows_every_setting():
    purify = DiffPure(tiny_ddpm(), t_star=5, steps=2)
    assert repr(purify) == "DiffPure(ddpm, t_star=5, steps=2)"
    assert (purify.gradient, purify.random) == ("exact", True)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: DiffPure(nn.Identity()), r"expected a soap\.models\.DDPM"),
        (lambda m, x: DiffPure(m, t_star=21), "t_star is 21, expected at most 20"),
        (lambda m, x: DiffPure(m, t_star=0), "t_star is 0"),
        (lambda m, x: DiffPure(m, t_star=5, steps=6), "steps is 6, expected at least 1 and at most 5"),
        (lambda m, x: DiffPure(m, t_star=5, steps=2)(x[:, :, :4]), r"this model takes \[batch, 1, 8, 8\]"),
        (lambda m, x: DiffPure(m, t_star=5, steps=2)(x * 255), "divide by 255"),
    ],
)
def test_bad_input_raises(call, message):
    with pytest.raises(soap.InputError, match=message):
        call(tiny_ddpm(), noise_images(2, dtype=torch.float64))
