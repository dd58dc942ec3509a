"""View averaging against a hand-made mean; smoothing against the closed form of a linear classifier and scipy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import noise_images, state_of, tiny_model
from torch import nn

import soap
from soap.purifiers import Smoothing, ViewAverage
from soap.purifiers.smoothing import binomial_tail, lower_bound


def plain_shift(image, down, right):
    """Shift one image [c, h, w] by whole pixels; edges are repeated."""
    _, h, w = image.shape
    rows = [min(max(i - down, 0), h - 1) for i in range(h)]
    columns = [min(max(j - right, 0), w - 1) for j in range(w)]
    return torch.stack([torch.stack([image[:, i, j] for j in columns], 1) for i in rows], 1)


@pytest.mark.parametrize(("shift", "flip"), [(0, False), (0, True), (1, False), (2, True)])
def test_views_equal_a_hand_made_mean(shift, flip):
    model, x = tiny_model(dtype=torch.float64), noise_images(3, dtype=torch.float64)
    copies = []
    for down in sorted({-shift, 0, shift}):
        for right in sorted({-shift, 0, shift}):
            moved = torch.stack([plain_shift(image, down, right) for image in x])
            copies += [moved, moved.flip(3)] if flip else [moved]
    expected = sum(model(copy) for copy in copies) / len(copies)
    torch.testing.assert_close(ViewAverage(model, shift=shift, flip=flip)(x), expected)


def test_views_have_an_exact_gradient_and_can_be_attacked():
    model, x = tiny_model(dtype=torch.float64), noise_images(2, dtype=torch.float64)
    views = ViewAverage(model, shift=1, flip=True)
    assert torch.autograd.gradcheck(views, x.clone().requires_grad_())
    assert (views.gradient, views.random, views.classes) == ("exact", False, 4)
    assert views.name == "tiny-reconstruction in ViewAverage(shift=1, flip=True)"
    defence = soap.Defence(views)
    adversarial = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)(defence, x, torch.arange(2))
    assert (adversarial - x).abs().max() > 0
    torch.testing.assert_close(views(x)[1:], views(x[1:]))


class Linear(nn.Module):
    """Class 1 if w . x + b > 0; two classes."""

    def __init__(self, w, b):
        super().__init__()
        self.w, self.b = w, b

    def forward(self, x):
        score = x.flatten(1) @ self.w + self.b
        return torch.stack([torch.zeros_like(score), score], 1)


def phi(z):
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def test_votes_and_radius_are_those_of_a_linear_classifier():
    # Under noise, class 1 has probability Phi(margin / sigma), where margin is the distance to the boundary.
    w = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = Linear(w, 0.3)
    margin = (x.flatten(1) @ w + 0.3) / w.norm()
    sigma, draws = float(margin.abs().mean()), 4000
    smooth = Smoothing(model, sigma=sigma, generator=torch.Generator().manual_seed(2))
    share = smooth.votes(x, draws)[:, 1] / draws
    truth = torch.tensor([phi(m / sigma) for m in margin.tolist()]).double()
    assert (share - truth).abs().max() < 4 * 0.5 / math.sqrt(draws)
    out = smooth.certify(x, choose_draws=100, draws=draws, alpha=0.001)
    kept = ~out.abstained
    assert torch.equal(out.labels[kept], (margin > 0).long()[kept])
    assert kept.any()
    # The certified radius is below the distance to the boundary, the true radius, and near it.
    assert (out.radius[kept] <= margin.abs()[kept]).all()
    assert (out.radius[kept] >= 0.8 * margin.abs()[kept] - 0.1 * sigma).all()
    assert (out.radius[out.abstained] == 0).all()
    torch.testing.assert_close(out.radius[kept], sigma * torch.special.ndtri(out.probability[kept]))


def test_smoothing_abstains_at_the_decision_boundary():
    w = torch.ones(4, dtype=torch.float64)
    model, x = Linear(w, -2.0), torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
    smooth = Smoothing(model, sigma=1.0, generator=torch.Generator().manual_seed(0))
    assert smooth.certify(x, draws=500).abstained.all()
    assert smooth.labels(x, draws=500).abstained.all()
    far = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    assert not Smoothing(model, sigma=0.2).labels(far).abstained.any()


def test_forward_is_the_log_of_the_mean_probability_of_fresh_draws():
    model, x = tiny_model(dtype=torch.float64), noise_images(3, dtype=torch.float64)
    smooth = Smoothing(model, sigma=0.5, draws=4)
    torch.manual_seed(3)
    made = smooth(x)
    torch.manual_seed(3)
    parts = [model(x + 0.5 * torch.randn(x.shape, dtype=x.dtype)).softmax(1) for _ in range(4)]
    torch.testing.assert_close(made.exp(), sum(parts) / 4)
    assert not torch.equal(smooth(x), smooth(x))
    assert (smooth.gradient, smooth.random) == ("exact", True)

    def repeated(point):
        torch.manual_seed(3)
        return smooth(point)

    assert torch.autograd.gradcheck(repeated, x.clone().requires_grad_())


@given(st.integers(1, 300), st.floats(0.0001, 0.5), st.data())
def test_lower_bound_is_the_quantile_of_the_beta_distribution(draws, alpha, data):
    beta = pytest.importorskip("scipy.stats").beta
    successes = data.draw(st.integers(1, draws))
    assert lower_bound(successes, draws, alpha) == pytest.approx(
        beta.ppf(alpha, successes, draws - successes + 1), abs=1e-9
    )


def test_lower_bound_has_its_closed_forms():
    assert lower_bound(0, 50, 0.01) == 0
    assert lower_bound(50, 50, 0.01) == pytest.approx(0.01 ** (1 / 50))
    assert lower_bound(1, 50, 0.01) == pytest.approx(1 - 0.99 ** (1 / 50))
    assert lower_bound(99_900, 100_000, 0.001) == pytest.approx(0.9986, abs=1e-4)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.data())
def test_binomial_tail_is_a_sum(draws, p, data):
    k = data.draw(st.integers(0, draws))
    expected = sum(math.comb(draws, j) * p**j * (1 - p) ** (draws - j) for j in range(k, draws + 1))
    assert binomial_tail(k, draws, p) == pytest.approx(expected, rel=1e-9)


def test_model_does_not_change():
    model, x = tiny_model().train(), noise_images(2)
    before = state_of(model)
    Smoothing(model, generator=torch.Generator().manual_seed(0)).certify(x, choose_draws=5, draws=5)
    assert state_of(model) == before


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: ViewAverage(m, shift=-1), "shift is -1"),
        (lambda m, x: ViewAverage(lambda x: x), "expected an nn.Module from images to logits"),
        (lambda m, x: Smoothing(m, sigma=0.0), "sigma is 0.0"),
        (lambda m, x: Smoothing(m, draws=0), "draws is 0"),
        (lambda m, x: Smoothing(m).certify(x, alpha=0.0), "alpha is 0.0"),
        (lambda m, x: Smoothing(m).votes(x * 255, 1), "divide by 255"),
    ],
)
def test_bad_input_raises(call, message):
    with pytest.raises(soap.InputError, match=message):
        call(tiny_model(), noise_images(2))
