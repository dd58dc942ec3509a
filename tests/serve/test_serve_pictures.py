"""Pictures in and out of the service, against pixels known beforehand."""

import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from soap.serve.problems import RequestError

from soap.serve.pictures import SCAN, decode, encode, magnified, on_levels

GREY, COLOUR = (1, 4, 6), (3, 4, 6)
RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
MANY = 4_000_000


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def test_grey_pixels_come_through_exactly():
    x = decode(saved(Image.fromarray(RAMP)), GREY, pixels=MANY)
    assert torch.equal(x, torch.from_numpy(RAMP)[None].float() / 255)


def test_colour_pixels_come_through_exactly():
    pixels = np.stack([RAMP, 255 - RAMP, RAMP // 2], 2)
    x = decode(saved(Image.fromarray(pixels)), COLOUR, pixels=MANY)
    assert torch.equal(x, torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)


def test_grey_becomes_colour_and_colour_grey():
    x = decode(saved(Image.fromarray(RAMP)), COLOUR, pixels=MANY)
    assert torch.equal(x[0], x[2])
    grey = decode(saved(Image.fromarray(np.stack([RAMP] * 3, 2))), GREY, pixels=MANY)
    assert torch.equal(grey[0], x[0])


def test_invert_swaps_dark_and_light():
    body = saved(Image.fromarray(RAMP))
    assert torch.equal(decode(body, GREY, pixels=MANY, invert=True), 1 - decode(body, GREY, pixels=MANY))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_over_white(mode):
    alpha = np.where(RAMP < 100, 0, 255).astype(np.uint8)
    image = Image.fromarray(RAMP).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    x = decode(saved(image), GREY, pixels=MANY)[0]
    assert (x[RAMP < 100] == 1).all()
    assert torch.equal(x[RAMP >= 100], torch.from_numpy(RAMP).float()[RAMP >= 100] / 255)


def test_a_palette_with_a_transparent_colour_lies_over_white():
    image = Image.fromarray((RAMP > 100).astype(np.uint8), mode=None).convert("P")
    image.putpalette([0, 0, 0, 255, 0, 0])
    x = decode(saved(image, transparency=0), COLOUR, pixels=MANY)
    assert torch.equal(x[:, 0, 0], torch.ones(3))
    assert torch.equal(x[:, 3, 5], torch.tensor([1.0, 0, 0]))


def test_sixteen_bits_are_scaled_and_one_bit_is_black_or_white():
    deep = Image.fromarray(RAMP.astype(np.uint16) * 256 + 17)
    assert torch.equal(decode(saved(deep), GREY, pixels=MANY)[0], torch.from_numpy(RAMP).float() / 255)
    sharp = Image.fromarray(RAMP).point(lambda level: 255 * (level > 100), "1")
    assert torch.equal(decode(saved(sharp), GREY, pixels=MANY)[0], torch.from_numpy(RAMP > 100).float())


def test_jpeg_is_read_and_turned_as_its_exif_says():
    pixels = np.zeros((16, 24), np.uint8)
    pixels[:, 12:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise: the bright half, on the right, goes down
    x = decode(saved(Image.fromarray(pixels), "JPEG", exif=exif, quality=95), (1, 24, 16), pixels=MANY)[0]
    assert x[:8].max() < 0.1
    assert x[16:].min() > 0.9


def test_a_large_picture_is_scaled_bilinearly_each_side_by_itself():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 90), np.uint8))
    wanted = np.asarray(image.resize((6, 4), Image.Resampling.BILINEAR))
    assert torch.equal(decode(saved(image), GREY, pixels=MANY)[0], torch.from_numpy(wanted.copy()).float() / 255)


def test_the_pixel_limit_counts_whole_pictures():
    body = saved(Image.fromarray(RAMP))
    decode(body, GREY, pixels=24)
    with pytest.raises(RequestError, match="6 x 4 pixels, want at most 23"):
        decode(body, GREY, pixels=23)


def test_a_picture_of_four_megapixels_is_taken():
    image = Image.new("L", (2500, 1600), 51)
    assert torch.equal(decode(saved(image), GREY, pixels=MANY), torch.full(GREY, 0.2))


def test_a_jpeg_of_endless_scans_is_refused_before_it_is_decoded():
    body = saved(Image.fromarray(RAMP), "JPEG")
    with pytest.raises(RequestError, match="scans"):
        decode(body + SCAN * 200, GREY, pixels=MANY)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]))
def test_what_is_encoded_is_decoded(seed, channels):
    levels = np.random.default_rng(seed).integers(0, 256, (channels, 4, 6))
    x = torch.from_numpy(levels).float() / 255
    assert torch.equal(decode(base64.b64decode(encode(x)), (channels, 4, 6), pixels=MANY), x)


def test_encoded_pictures_carry_no_metadata():
    chunks = base64.b64decode(encode(torch.zeros(1, 4, 6)))
    assert [name for name in (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"tIME", b"iCCP") if name in chunks] == []


def test_magnified_differences_span_black_to_white_about_mid_grey():
    shown, times = magnified(torch.tensor([[[-0.1, 0.0, 0.05]]]))
    assert torch.allclose(shown, torch.tensor([[[0.0, 0.5, 0.75]]]))
    assert times == pytest.approx(5)
    nothing, once = magnified(torch.zeros(1, 2, 2))
    assert (nothing == 0.5).all()
    assert once == 1


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 8 / 255, 0.01]))
def test_levels_never_leave_the_ball_around_an_8_bit_image(seed, eps):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (2, 1, 4, 4))).float() / 255
    changed = (x + torch.from_numpy(rng.uniform(-eps, eps, x.shape)).float()).clamp(0, 1)
    written = on_levels(changed, x)
    assert torch.equal((written * 255).round() / 255, written)
    assert (written - x).abs().max() <= eps + 1e-6
    assert (written - changed).abs().max() < 1.01 / 255
