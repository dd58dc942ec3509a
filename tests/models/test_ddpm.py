"""The diffusion model against the formulas of Ho et al. 2020, in float64."""

import math

import pytest
import torch
from torch import nn

import soap
from soap.models.ddpm import DDPM, UNet, reverse_times, sinusoids


def tiny_ddpm(dtype=torch.float64, **options):
    """Return a small model; its last layers, zero at first, get weights, so that outputs depend on all inputs."""
    torch.manual_seed(0)
    model = DDPM(**{"inputs": (1, 8, 8), "width": 8, "steps": 20, **options}).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.2)
    return model.eval()


def plain_schedule(model, first=1e-4, last=0.02):
    betas = [first + (last - first) * k / (model.steps - 1) for k in range(model.steps)]
    return betas, [math.prod(1 - beta for beta in betas[:t]) for t in range(model.steps + 1)]


def test_noised_images_have_the_mean_and_variance_of_the_forward_process():
    model = tiny_ddpm(steps=1000)
    _, abar = plain_schedule(model)
    x, noise, t = torch.rand(3, 1, 8, 8).double(), torch.randn(3, 1, 8, 8).double(), torch.tensor([1, 500, 1000])
    made = model.noised(x, t, noise)
    for k, time in enumerate(t.tolist()):
        expected = math.sqrt(abar[time]) * x[k] + math.sqrt(1 - abar[time]) * noise[k]
        torch.testing.assert_close(made[k], expected, rtol=1e-5, atol=1e-6)  # the schedule is kept in float32
    assert abar[1000] < 1e-4


def test_posterior_of_one_step_is_equation_7():
    model = tiny_ddpm()
    betas, abar = plain_schedule(model)
    x, start = torch.randn(20, 1, 8, 8).double(), torch.randn(20, 1, 8, 8).double()
    t = torch.arange(1, 21)
    mean, variance = model.posterior(x, start, t, t - 1)
    for k in range(20):
        beta, now, before = betas[k], abar[k + 1], abar[k]
        expected = (
            math.sqrt(before) * beta / (1 - now) * start[k] + math.sqrt(1 - beta) * (1 - before) / (1 - now) * x[k]
        )
        torch.testing.assert_close(mean[k], expected, rtol=1e-3, atol=1e-4)
        assert variance[k].item() == pytest.approx((1 - before) / (1 - now) * beta, rel=1e-3, abs=1e-6)


def test_posterior_of_a_long_step_is_that_of_gaussian_conditioning():
    # x_s | x_0 is N(sqrt(abar_s) x_0, 1 - abar_s) and x_t | x_s is N(sqrt(a) x_s, 1 - a): multiply the two densities.
    model = tiny_ddpm(steps=1000)
    model.abar = model.abar.double()
    x, start = torch.randn(2, 1, 8, 8).double(), torch.randn(2, 1, 8, 8).double()
    t, s = torch.tensor([900, 300]), torch.tensor([600, 290])
    mean, variance = model.posterior(x, start, t, s)
    now, then = (model.abar[k].reshape(-1, 1, 1, 1) for k in (t, s))
    a = now / then
    precision = 1 / (1 - then) + a / (1 - a)
    expected = (then.sqrt() * start / (1 - then) + a.sqrt() * x / (1 - a)) / precision
    torch.testing.assert_close(mean, expected)
    torch.testing.assert_close(variance, 1 / precision)


def test_reverse_step_predicts_the_start_from_the_noise():
    model = tiny_ddpm()
    x, noise = torch.randn(4, 1, 8, 8).double(), torch.randn(4, 1, 8, 8).double()
    t = torch.tensor([1, 5, 10, 20])
    abar = model.abar.double()[t].reshape(-1, 1, 1, 1)
    start = (x - (1 - abar).sqrt() * model(x, t)) / abar.sqrt()
    mean, variance = model.posterior(x, start, t, t // 2)
    torch.testing.assert_close(model.reverse_step(x, t, t // 2, noise), mean + variance.sqrt() * noise)
    torch.testing.assert_close(model.reverse_step(x, t, torch.zeros_like(t), noise), start)


class Oracle(nn.Module):
    """Predicts the noise of a known image exactly."""

    def __init__(self, model, image):
        super().__init__()
        self.abar, self.image = model.abar.double(), image

    def forward(self, x, t):
        abar = self.abar[t.long()].reshape(-1, 1, 1, 1)
        return (x - abar.sqrt() * self.image) / (1 - abar).sqrt()


def test_sampling_with_an_exact_noise_prediction_returns_the_image():
    model = tiny_ddpm(steps=50)
    image = torch.rand(1, 8, 8).double()
    model.network = Oracle(model, 2 * image - 1)
    for steps in (1, 7, 50):
        made = model.sample(3, steps=steps, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(made.double(), image.expand(3, 1, 8, 8), rtol=0, atol=1e-4)


def test_sampling_repeats_with_the_generator_and_stays_in_the_unit_interval():
    model = tiny_ddpm(torch.float32)
    first, again, other = (model.sample(2, steps=5, generator=torch.Generator().manual_seed(k)) for k in (1, 1, 2))
    assert first.shape == (2, 1, 8, 8)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.min() >= 0
    assert first.max() <= 1


@pytest.mark.parametrize(("last", "steps"), [(10, 10), (10, 1), (10, 3), (1000, 999)])
def test_reverse_times_fall_from_the_last_to_zero(last, steps):
    times = reverse_times(last, steps)
    assert (times[0], times[-1], len(times)) == (last, 0, steps + 1)
    assert all(a > b for a, b in zip(times, times[1:]))  # noqa: B905, RUF007


def test_predictions_do_not_depend_on_other_samples_and_depend_on_time():
    model, x = tiny_ddpm(), torch.randn(5, 1, 8, 8).double()
    t = torch.tensor([1, 5, 9, 13, 20])
    whole = model(x, t)
    torch.testing.assert_close(model(x[3:4], t[3:4]), whole[3:4])
    assert not torch.allclose(model(x, t.flip(0)), whole)


@pytest.mark.parametrize("options", [{"patch": 1, "multipliers": (1, 2, 2)}, {"blocks": 2}, {"inputs": (3, 8, 16)}])
def test_output_has_the_shape_of_the_image(options):
    model = tiny_ddpm(**options)
    x = torch.randn(2, *model.input_shape).double()
    assert model(x, torch.tensor([1, 2])).shape == x.shape


def test_bundled_recipes_have_the_stated_sizes():
    for name, low, high in (("ddpm-mnist", 1.0e6, 1.1e6), ("ddpm-cifar10", 9e6, 10e6)):
        with torch.device("meta"):
            model = soap.recipes.generative.network(soap.recipes.generative.read(name))
        assert low < sum(parameter.numel() for parameter in model.parameters()) < high


def test_sinusoids_are_sines_and_cosines():
    made = sinusoids(torch.tensor([0.0, 3.0]).double(), 4)
    expected = [[0, 0, 1, 1], [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]]
    torch.testing.assert_close(made, torch.tensor(expected).double())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 12}, "width is 12, expected a multiple of 8"),
        ({"inputs": (1, 6, 8)}, "both sides multiples of 4"),
        ({"inputs": (8, 8)}, "channels, height and width"),
        ({"multipliers": ()}, "at least one multiplier"),
        ({"patch": 0}, "patch is 0"),
        ({"steps": 1}, r"steps \(T\) is 1"),
        ({"last_beta": 1.0}, "first_beta <= last_beta < 1"),
    ],
)
def test_bad_sizes_raise(options, message):
    with pytest.raises(soap.InputError, match=message):
        DDPM(**{"inputs": (1, 8, 8), "width": 8, **options})


def test_levels_with_more_blocks_have_more_parameters():
    sizes = [sum(p.numel() for p in UNet(inputs=(1, 8, 8), width=8, blocks=n).parameters()) for n in (1, 2)]
    assert sizes[0] < sizes[1]
