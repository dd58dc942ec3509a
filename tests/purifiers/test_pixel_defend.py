"""PixelDefend against a slow plain loop, value for value."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap._runtime import cuda_graphs
from soap.defence import Defence
from soap.errors import InputError
from soap.models.logistic_mixture import Candidates, LogisticMixture, centred, most_likely, parameters_per_pixel
from soap.models.pixelcnn import PixelCNN
from soap.purifiers.pixel_defend import PixelDefend
from soap.shapes import Tensor


def small(shape: tuple[int, ...], *, seed: int = 0, **options: Any) -> PixelCNN:
    """A small model in double precision whose mixtures are narrow and depend on the image."""
    model = PixelCNN(inputs=shape, **{"channels": 4, "blocks": 1, "mixtures": 3, **options}).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        scales = slice(model.mixtures * (1 + shape[0]), model.mixtures * (1 + 2 * shape[0]))
        model.head.weight[scales] *= 0.1
        model.head.bias[scales] = -3
    return model


def pictures(batch: int, shape: tuple[int, ...], *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, *shape), generator=generator).double() / 255


def plain_log_mass(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The logarithm of a logistic's mass between two points, computed in the tail that contains them."""
    flip = low + high > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    below_a, below_b = -np.logaddexp(0, -a), -np.logaddexp(0, -b)
    return below_b + np.log1p(-np.exp(below_a - below_b))


def plain_purify(model: PixelCNN, x: Tensor, reach: int) -> Tensor:
    """One image: for every pixel and channel a forward pass of the whole image, and every candidate's joint probability
    with the channels selected before, bin by bin."""
    c, height, width = model.input_shape
    m, levels = model.mixtures, model.levels
    image = np.round(x.numpy() * (levels - 1)).astype(int)
    given_image = image.copy()
    for i, j, channel in np.ndindex(height, width, c):
        with torch.no_grad():
            raw = model.raw(torch.from_numpy(image[None] / (levels - 1)))[0, :, i, j].numpy()
        means, log_scales = raw[m : m + m * c].reshape(m, c), raw[m + m * c : m + 2 * m * c].reshape(m, c)
        coupling = np.tanh(raw[m + 2 * m * c :].reshape(m, -1))
        best = (-math.inf, 0, 0)
        for candidate in range(max(0, given_image[channel, i, j] - reach), given_image[channel, i, j] + reach + 1):
            if candidate >= levels:
                break
            image[channel, i, j] = candidate
            joint, pair = raw[:m].copy(), 0
            for d in range(channel + 1):
                mean = means[:, d].copy()
                for e in range(d):
                    mean += coupling[:, pair] * ((2 * image[e, i, j] + 1) / levels - 1)
                    pair += 1
                low, high = 2 * image[d, i, j] / levels - 1, 2 * (image[d, i, j] + 1) / levels - 1
                scale = np.exp(np.maximum(log_scales[:, d], -7))
                joint += plain_log_mass(
                    (low - mean) / scale if image[d, i, j] > 0 else np.full(m, -np.inf),
                    (high - mean) / scale if image[d, i, j] < levels - 1 else np.full(m, np.inf),
                )
            best = max(best, (np.logaddexp.reduce(joint), -abs(candidate - given_image[channel, i, j]), -candidate))
        image[channel, i, j] = -best[2]
    return torch.from_numpy(image / (levels - 1))


@settings(max_examples=12)
@given(
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 4), st.integers(1, 4)),
    reach=st.integers(0, 20),
    seed=st.integers(0, 2**31),
)
def test_result_equals_a_slow_plain_loop(shape: tuple[int, int, int], reach: int, seed: int) -> None:
    model, x = small(shape, seed=seed), pictures(2, shape, seed=seed)
    got = PixelDefend(model, reach / 255)(x)
    assert torch.equal(got.x, torch.stack([plain_purify(model, image, reach) for image in x]))


def test_fields_of_the_result() -> None:
    model, x = small((3, 5, 4)), pictures(6, (3, 5, 4))
    kept, weights = x.clone(), copy.deepcopy(model.state_dict())
    model.train()
    state = torch.get_rng_state()
    out = PixelDefend(model, 9 / 255)(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    model.eval()
    assert torch.equal(x, kept)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert out.x.min() >= 0
    assert out.x.max() <= 1
    changes = (out.x - x).abs().flatten(1).amax(1)
    torch.testing.assert_close(out.eps, changes)
    assert 0 < changes.max() <= 9 / 255 + 1e-12
    torch.testing.assert_close(out.x * 255, (out.x * 255).round())
    with torch.no_grad():
        torch.testing.assert_close(out.loss_before, model.bits_per_dim(x))
        torch.testing.assert_close(out.loss_after, model.bits_per_dim(out.x))
    assert torch.equal(PixelDefend(model, 9 / 255)(x).x, out.x)


def test_result_does_not_depend_on_the_batch() -> None:
    model, x = small((3, 4, 3)), pictures(5, (3, 4, 3))
    purify = PixelDefend(model)
    together = purify(x)
    for place in range(5):
        alone = purify(x[place : place + 1])
        assert torch.equal(alone.x[0], together.x[place])
        assert torch.equal(alone.eps[0], together.eps[place])
        torch.testing.assert_close(alone.loss_after[0], together.loss_after[place])


def test_autocast_does_not_change_the_result() -> None:
    model, x = small((3, 4, 3)).float(), pictures(3, (3, 4, 3)).float()
    wanted = PixelDefend(model)(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(PixelDefend(model)(x).x, wanted.x)


def test_max_memory_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from soap.purifiers import pixel_defend

    model, x = small((1, 4, 3)), pictures(5, (1, 4, 3))
    walked: list[int] = []
    generate = pixel_defend.generate_pixels

    def counting(model: PixelCNN, choose: Any, given: Tensor, *, name: str) -> Tensor:
        walked.append(len(given))
        return generate(model, choose, given, name=name)

    monkeypatch.setattr(pixel_defend, "generate_pixels", counting)
    whole = PixelDefend(model)(x)
    parts = PixelDefend(model, max_memory=25_000)(x)
    assert walked[0] == 5
    assert len(walked) > 2
    assert sum(walked[1:]) == 5
    assert torch.equal(parts.x, whole.x)
    torch.testing.assert_close(parts.loss_after, whole.loss_after)
    with pytest.raises(InputError, match="max_memory is 100 bytes, but one image needs about"):
        PixelDefend(model, max_memory=100)(x)


@pytest.mark.parametrize(("channels", "mixtures"), [(1, 4), (3, 1)])
def test_likelihood_of_independent_pixels_never_falls(channels: int, mixtures: int) -> None:
    """The greedy choice is then optimal, and without a limit it is the mode of every pixel."""
    shape = (channels, 3, 4)
    model, x = small(shape, mixtures=mixtures), pictures(8, shape)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias[mixtures * (1 + 2 * channels) :] = 0  # no coupling: channels are independent, too
    near, far = PixelDefend(model, 5 / 255)(x), PixelDefend(model, 1.0)(x)
    assert (near.loss_after < near.loss_before).all()
    assert (far.loss_after < near.loss_after).all()
    assert (far.x == far.x[:1, :, :1, :1]).all()


def test_equally_likely_levels_give_the_nearest_then_the_lower() -> None:
    """A logistic symmetric about the boundary between 127 and 128 has equals on both sides; a channel without a
    preference, all equals, stays."""
    raw = torch.zeros(3, parameters_per_pixel(1, 1), 1, dtype=torch.float64)
    mixture = LogisticMixture.from_network(raw, channels=1, mixtures=1, levels=256)
    values = centred(torch.tensor([[127, 128]]).expand(3, 2), 256, torch.float64)
    assert (mixture.component(0, values, raw[:, :0]).diff() == 0).all()  # exactly equal
    purify = PixelDefend(small((1, 1, 1)), 2 / 255)
    assert purify.offsets.tolist() == [0, -1, 1, -2, 2]
    levels = torch.tensor([127, 128, 126])
    candidates = Candidates.among(levels[:, None, None] + purify.offsets, 256, torch.float64)
    assert most_likely(mixture, candidates)[:, 0].tolist() == [127, 128, 127]


def test_a_mode_outside_eps_moves_pixels_to_the_edge() -> None:
    model = small((1, 1, 2), mixtures=1)
    with torch.no_grad():
        model.head.weight.zero_()
        for mean, x, want in ((-9.0, [4, 9], [0, 3]), (9.0, [253, 240], [255, 246])):
            model.head.bias[1] = mean
            got = PixelDefend(model, 6 / 255)(torch.tensor(x).reshape(1, 1, 1, 2).double() / 255)
            assert (got.x * 255).round().flatten().tolist() == want


def test_inputs_are_rounded_to_eight_bits() -> None:
    model, x = small((1, 3, 3)), pictures(2, (1, 3, 3)).clamp(0.01, 0.99)
    purify = PixelDefend(model)
    assert torch.equal(purify(x + 0.4 / 255).x, purify(x).x)


@pytest.mark.parametrize(
    ("eps", "reach"), [(0.0, 0), (16 / 255, 16), (0.06, 15), (float(torch.tensor(8 / 255)), 8), (1.0, 255)]
)
def test_eps_is_rounded_down_to_whole_levels(eps: float, reach: int) -> None:
    assert int(PixelDefend(small((1, 1, 1)), eps).offsets.max()) == reach


def test_defence_passes_gradients_straight_through() -> None:
    purify = PixelDefend(small((1, 2, 2)))
    robust = Defence(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3).double()), purify)
    x = pictures(2, (1, 2, 2)).requires_grad_()
    (gradient,) = torch.autograd.grad(robust(x).sum(), x)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 3, 4, 4), r"this model takes \[batch, 1, 4, 4\]"),
        (torch.zeros(2, 1, 4, 5), r"this model takes \[batch, 1, 4, 4\]"),
        (torch.zeros(0, 1, 4, 4), "empty batch"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.uint8), "divide 8-bit images by 255"),
        (torch.full((1, 1, 4, 4), torch.nan), "NaN"),
        (torch.full((1, 1, 4, 4), 1.5), r"expected \[0, 1\]"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.float64), "the model's parameters are torch.float32"),
    ],
)
def test_bad_images(x: Tensor, message: str) -> None:
    purify = PixelDefend(PixelCNN(inputs=(1, 4, 4), channels=2, blocks=1, mixtures=1))
    with pytest.raises(InputError, match=message):
        purify(x)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -0.1}, "eps is -0.1"),
        ({"eps": math.nan}, "eps is nan"),
        ({"eps": 16.0}, r"did you mean 16/255\?"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PixelDefend(PixelCNN(inputs=(1, 4, 4), channels=2, blocks=1, mixtures=1), **options)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_classifier_instead_of_a_pixelcnn_raises() -> None:
    with pytest.raises(InputError, match="got a Linear, expected a PixelCNN"):
        PixelDefend(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_repr_shows_its_settings() -> None:
    assert repr(PixelDefend(small((1, 2, 2)), 0.5)) == "PixelDefend(eps=0.5)"


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    """Double precision agrees with the CPU value for value; single stays within eps and raises the likelihood."""
    model, x = small((3, 6, 5)), pictures(8, (3, 6, 5))
    exact = PixelDefend(model)(x)
    assert torch.equal(PixelDefend(model.cuda())(x.cuda()).x.cpu(), exact.x)
    out = PixelDefend(model.float())(x.float().cuda())
    assert out.eps.max() <= 16 / 255 + 1e-6
    assert out.loss_after.mean() < out.loss_before.mean()


@pytest.mark.gpu
def test_replay_does_not_change_the_result() -> None:
    """Batches of two sizes, one padded, with and without replay, and called twice."""
    model, x = small((3, 6, 5)).cuda(), pictures(8, (3, 6, 5)).cuda()
    plain = copy.deepcopy(model)
    model.recordable, plain.recordable = True, False
    for images in (x, x[:5], x.flip(0)):
        got, want = PixelDefend(model)(images), PixelDefend(plain)(images)
        assert torch.equal(got.x, want.x)
        torch.testing.assert_close(got.loss_after, want.loss_after)
    # One recording of a row serves all rows and both sizes.
    assert len(cuda_graphs._graphs_by_module[model].recordings) == 1
    assert plain not in cuda_graphs._graphs_by_module
