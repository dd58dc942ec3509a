"""The discretised logistic mixture against a plain implementation of its definition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.models.logistic_mixture import LogisticMixture, centred, parameters_per_pixel
from soap.shapes import Tensor


def drawn(seed: int, *, channels: int, mixtures: int, batch: int = 2, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = parameters_per_pixel(channels, mixtures)
    return spread * torch.randn(batch, numbers, 1, generator=generator, dtype=torch.float64)


def expit(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(1 / (1 + np.exp(-x)))


def plain_bin(level: int, mean: float, log_scale: float, levels: int) -> float:
    """Return the mass of one logistic in one bin, computed on the side without cancellation."""
    low = -np.inf if level == 0 else 2 * level / levels - 1
    high = np.inf if level == levels - 1 else 2 * (level + 1) / levels - 1
    a, b = (low - mean) / np.exp(log_scale), (high - mean) / np.exp(log_scale)
    return expit(b) - expit(a) if a + b < 0 else expit(-a) - expit(-b)


def plain_log_prob(raw: np.ndarray, pixel: tuple[int, ...], *, mixtures: int, levels: int) -> float:
    """log sum_k w_k prod_c P_k(x_c | x_<c), in plain Python."""
    c, m = len(pixel), mixtures
    weights = np.exp(raw[:m]) / np.exp(raw[:m]).sum()
    means, scales = raw[m : m + m * c].reshape(m, c), raw[m + m * c : m + 2 * m * c].reshape(m, c)
    coupling = np.tanh(raw[m + 2 * m * c :].reshape(m, -1))
    values = [(2 * level + 1) / levels - 1 for level in pixel]
    total = 0.0
    for k in range(m):
        mass, pair = weights[k], 0
        for channel in range(c):
            mean = means[k, channel]
            for other in range(channel):
                mean += coupling[k, pair] * values[other]
                pair += 1
            mass *= plain_bin(pixel[channel], mean, max(scales[k, channel], -7.0), levels)
        total += mass
    return float(np.log(total))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    channels=st.integers(1, 4),
    mixtures=st.integers(1, 4),
    levels=st.sampled_from([2, 3, 16, 256]),
    data=st.data(),
)
def test_log_prob_equals_the_definition(
    seed: int, channels: int, mixtures: int, levels: int, data: st.DataObject
) -> None:
    raw = drawn(seed, channels=channels, mixtures=mixtures)
    level = st.sampled_from([0, levels - 1]) | st.integers(0, levels - 1)
    pixels = [tuple(data.draw(level) for _ in range(channels)) for _ in raw]
    mixture = LogisticMixture.from_network(raw, channels=channels, mixtures=mixtures, levels=levels)
    got = mixture.log_prob(centred(torch.tensor(pixels)[..., None], levels, torch.float64))
    pairs = zip(raw[..., 0].numpy(), pixels, strict=True)
    want = [plain_log_prob(numbers, pixel, mixtures=mixtures, levels=levels) for numbers, pixel in pairs]
    torch.testing.assert_close(got[:, 0], torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conditional_probabilities_of_each_channel_sum_to_one(channels: int, dtype: torch.dtype) -> None:
    raw = drawn(5, channels=channels, mixtures=10, batch=8, spread=3.0).to(dtype)
    mixture = LogisticMixture.from_network(raw, channels=channels, mixtures=10, levels=256)
    values = centred(torch.arange(256), 256, dtype).expand(8, 256)
    before = torch.zeros(8, 0, 1, dtype=dtype)
    weights = mixture.log_weights
    for channel in range(channels):
        joint = (weights + mixture.component(channel, values, before)).logsumexp(1)
        given_before = joint - weights.logsumexp(1)
        torch.testing.assert_close(given_before.exp().sum(1), torch.ones(8, dtype=dtype))
        taken = torch.arange(8)[:, None] * 30  # any value for the next channels
        weights = weights + mixture.component(channel, values.gather(1, taken), before)
        before = torch.cat([before, values.gather(1, taken)[:, None]], 1)


def test_probabilities_of_three_coupled_channels_sum_to_one() -> None:
    raw = drawn(6, channels=3, mixtures=3, batch=1, spread=2.0)
    pixels = torch.tensor(list(itertools.product(range(4), repeat=3)))
    mixture = LogisticMixture.from_network(raw.expand(len(pixels), -1, -1), channels=3, mixtures=3, levels=4)
    total = mixture.log_prob(centred(pixels[..., None], 4, torch.float64)).exp().sum()
    torch.testing.assert_close(total, torch.tensor(1.0, dtype=torch.float64))


def test_log_prob_far_from_every_mean_is_finite_and_has_a_gradient() -> None:
    """In single precision, at the narrowest scale and a hundred times the image's range away, where a difference of
    sigmoids is zero."""
    raw = torch.zeros(3, parameters_per_pixel(1, 1), 1)
    raw[:, 1] = torch.tensor([100.0, 0.0, -100.0])[:, None]
    raw[:, 2] = -9.0
    raw.requires_grad_()
    mixture = LogisticMixture.from_network(raw, channels=1, mixtures=1, levels=256)
    got = mixture.log_prob(centred(torch.full((3, 1, 1), 40), 256, torch.float32))
    (gradient,) = torch.autograd.grad(got.sum(), raw)
    assert torch.isfinite(got).all()
    assert torch.isfinite(gradient).all()
    assert gradient[0, 1] < 0 < gradient[2, 1]  # the gradient moves the means towards the pixel


def test_centred_levels_are_exact_in_half_precision() -> None:
    values = centred(torch.arange(256), 256, torch.float64)
    assert torch.equal(values.to(torch.bfloat16).double(), values)
    assert torch.equal(values, (2 * torch.arange(256).double() + 1) / 256 - 1)


def test_likelihoods_of_half_precision_outputs_are_in_single_precision() -> None:
    raw = drawn(7, channels=3, mixtures=2).to(torch.bfloat16)
    mixture = LogisticMixture.from_network(raw, channels=3, mixtures=2, levels=256)
    assert mixture.log_prob(torch.zeros(2, 3, 1)).dtype == torch.float32
