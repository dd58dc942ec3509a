"""Filters against known windows, scipy and Pillow; what they declare about their gradients holds."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny import noise_images, tiny_model

import soap
from soap.purifiers import BitDepth, JpegCompression, MedianFilter

FILTERS = [MedianFilter(2), MedianFilter(3), BitDepth(2), JpegCompression(50)]


def test_median_of_known_windows():
    image = torch.tensor([[1.0, 9, 2], [8, 5, 3], [7, 4, 6]]).reshape(1, 1, 3, 3) / 10
    out = MedianFilter(3)(image).x[0, 0] * 10
    assert out[1, 1].item() == pytest.approx(5)  # 1 ... 9
    # The mirrored window of the corner: 5 8 5 / 9 1 9 / 5 8 5.
    assert out[0, 0].item() == pytest.approx(5)
    assert MedianFilter(2)(image).x[0, 0, 1, 1].item() * 10 == pytest.approx(8)  # the larger middle of 1 5 8 9
    assert torch.equal(MedianFilter(1)(image).x, image)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_median_equals_scipy(size):
    ndimage = pytest.importorskip("scipy.ndimage")
    x = torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = ndimage.median_filter(x.numpy(), size=(1, 1, size, size), mode="mirror")
    assert np.array_equal(MedianFilter(size)(x).x.numpy(), expected)


@pytest.mark.parametrize("size", [2, 3])
def test_gradient_of_the_median_is_exact(size):
    x = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.8 + 0.1
    assert torch.autograd.gradcheck(lambda point: MedianFilter(size)(point).x, x.requires_grad_())


@pytest.mark.parametrize(
    ("bits", "values"), [(1, {0.2: 0, 0.49: 0, 0.51: 1}), (2, {0.2: 1 / 3, 0.8: 2 / 3, 1.0: 1, 0.1: 0})]
)
def test_bit_depth_rounds_to_the_nearest_level(bits, values):
    x = torch.tensor([list(values)], dtype=torch.float64)
    torch.testing.assert_close(BitDepth(bits)(x).x[0], torch.tensor([float(v) for v in values.values()]).double())


@given(st.integers(1, 16))
def test_bit_depth_has_its_number_of_levels_and_keeps_them(bits):
    x, purify = torch.linspace(0, 1, 3000, dtype=torch.float64)[None], BitDepth(bits)
    once = purify(x).x
    assert len(once.unique()) == min(2**bits, 3000)
    assert (once - x).abs().max() <= 0.5 / (2**bits - 1) + 1e-12
    assert torch.equal(purify(once).x, once)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_equals_pillow(channels):
    x = torch.rand(3, channels, 16, 12, generator=torch.Generator().manual_seed(0))
    for image, made in zip(x, JpegCompression(40)(x).x, strict=True):
        levels = (image * 255).round().byte().numpy().transpose(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(levels.squeeze(2) if channels == 1 else levels).save(file, format="JPEG", quality=40)
        expected = np.asarray(Image.open(file)).reshape(16, 12, channels).transpose(2, 0, 1)
        assert np.array_equal((made * 255).round().byte().numpy(), expected)
    rough, fine = (JpegCompression(quality)(x).loss_before.mean() for quality in (5, 95))
    assert rough > fine


@pytest.mark.parametrize("purify", FILTERS, ids=repr)
def test_result_does_not_depend_on_other_samples_and_inputs_do_not_change(purify):
    x = noise_images(5)
    out = purify(x)
    assert torch.equal(x, noise_images(5))
    assert torch.equal(purify(x[3:4]).x, out.x[3:4])
    assert torch.equal(purify(x).x, out.x)
    torch.testing.assert_close(out.eps, (out.x - x).abs().flatten(1).amax(1))
    torch.testing.assert_close(out.loss_before, (out.x - x).square().flatten(1).mean(1))
    assert out.x.min() >= 0
    assert out.x.max() <= 1


@pytest.mark.parametrize("purify", FILTERS, ids=repr)
def test_declared_gradient_holds_and_a_defence_can_be_attacked(purify):
    x = noise_images(3).requires_grad_()
    made = purify(x).x
    slope = torch.autograd.grad(made.sum(), x)[0] if made.requires_grad else torch.zeros(())
    assert bool(slope.any()) == (purify.gradient == "exact")
    assert purify.random is False
    model, y = tiny_model(), torch.arange(3)
    adversarial = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)(soap.Defence(model, purify), x.detach(), y)
    assert (adversarial - x).abs().max() > 0


def test_repr_shows_every_setting():
    assert [*map(repr, FILTERS[1:])] == ["MedianFilter(size=3)", "BitDepth(bits=2)", "JpegCompression(quality=50)"]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: MedianFilter(0), "size is 0"),
        (lambda x: MedianFilter(17)(x), "window of 17, expected .* sides larger than 8"),
        (lambda x: BitDepth(0), "bits is 0"),
        (lambda x: BitDepth(17), "bits is 17, expected at most 16"),
        (lambda x: JpegCompression(0), "quality is 0"),
        (lambda x: JpegCompression(96), "quality is 96, expected at most 95"),
        (lambda x: JpegCompression()(x.repeat(1, 2, 1, 1)), "1 channel .* or 3"),
        (lambda x: BitDepth()(x * 255), "divide by 255"),
    ],
)
def test_bad_input_raises(call, message):
    with pytest.raises(soap.InputError, match=message):
        call(noise_images(2))
