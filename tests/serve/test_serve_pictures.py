"""Decoding and encoding of pictures, against known pixels."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")


from soap.serve.pictures import (
    PictureTooLargeError,
    UnreadablePictureError,
    encode_png,
    magnify_difference,
    read_picture,
    round_to_8bit,
)

GREY, COLOUR = (1, 4, 6), (3, 4, 6)
RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
MANY = 4_000_000


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def test_grey_pixels_are_exact():
    x = read_picture(saved(Image.fromarray(RAMP)), GREY, max_pixels=MANY)
    assert torch.equal(x, torch.from_numpy(RAMP)[None].float() / 255)


def test_colour_pixels_are_exact():
    pixels = np.stack([RAMP, 255 - RAMP, RAMP // 2], 2)
    x = read_picture(saved(Image.fromarray(pixels)), COLOUR, max_pixels=MANY)
    assert torch.equal(x, torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)


def test_grey_is_converted_to_colour_and_back():
    x = read_picture(saved(Image.fromarray(RAMP)), COLOUR, max_pixels=MANY)
    assert torch.equal(x[0], x[2])
    grey = read_picture(saved(Image.fromarray(np.stack([RAMP] * 3, 2))), GREY, max_pixels=MANY)
    assert torch.equal(grey[0], x[0])


def test_invert_swaps_dark_and_light():
    body = saved(Image.fromarray(RAMP))
    assert torch.equal(
        read_picture(body, GREY, max_pixels=MANY, invert=True), 1 - read_picture(body, GREY, max_pixels=MANY)
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_composed_over_white(mode):
    alpha = np.where(RAMP < 100, 0, 255).astype(np.uint8)
    image = Image.fromarray(RAMP).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    x = read_picture(saved(image), GREY, max_pixels=MANY)[0]
    assert (x[RAMP < 100] == 1).all()
    assert torch.equal(x[RAMP >= 100], torch.from_numpy(RAMP).float()[RAMP >= 100] / 255)


def test_transparent_palette_colour_is_composed_over_white():
    image = Image.fromarray((RAMP > 100).astype(np.uint8), mode=None).convert("P")
    image.putpalette([0, 0, 0, 255, 0, 0])
    x = read_picture(saved(image, transparency=0), COLOUR, max_pixels=MANY)
    assert torch.equal(x[:, 0, 0], torch.ones(3))
    assert torch.equal(x[:, 3, 5], torch.tensor([1.0, 0, 0]))


def test_16_bit_and_1_bit_pictures():
    deep = Image.fromarray(RAMP.astype(np.uint16) * 256 + 17)
    assert torch.equal(read_picture(saved(deep), GREY, max_pixels=MANY)[0], torch.from_numpy(RAMP).float() / 255)
    sharp = Image.fromarray(RAMP).point(lambda level: 255 * (level > 100), "1")
    assert torch.equal(read_picture(saved(sharp), GREY, max_pixels=MANY)[0], torch.from_numpy(RAMP > 100).float())


def test_jpeg_exif_orientation_is_applied():
    pixels = np.zeros((16, 24), np.uint8)
    pixels[:, 12:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise: the bright half, on the right, goes down
    x = read_picture(saved(Image.fromarray(pixels), "JPEG", exif=exif, quality=95), (1, 24, 16), max_pixels=MANY)[0]
    assert x[:8].max() < 0.1
    assert x[16:].min() > 0.9


def test_large_picture_is_scaled_bilinearly_to_the_model_size():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 90), np.uint8))
    wanted = np.asarray(image.resize((6, 4), Image.Resampling.BILINEAR))
    assert torch.equal(
        read_picture(saved(image), GREY, max_pixels=MANY)[0], torch.from_numpy(wanted.copy()).float() / 255
    )


def test_pixel_limit():
    body = saved(Image.fromarray(RAMP))
    read_picture(body, GREY, max_pixels=24)
    with pytest.raises(PictureTooLargeError, match=r"6 x 4 pixels.* 23 "):
        read_picture(body, GREY, max_pixels=23)


def test_four_megapixels_are_accepted():
    image = Image.new("L", (2500, 1600), 51)
    assert torch.equal(read_picture(saved(image), GREY, max_pixels=MANY), torch.full(GREY, 0.2))


def test_jpeg_with_many_scans_is_refused():
    body = saved(Image.fromarray(RAMP), "JPEG")
    with pytest.raises(UnreadablePictureError, match="scans"):
        read_picture(body + b"\xff\xda" * 200, GREY, max_pixels=MANY)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]))
def test_encoded_image_is_decoded_exactly(seed, channels):
    levels = np.random.default_rng(seed).integers(0, 256, (channels, 4, 6))
    x = torch.from_numpy(levels).float() / 255
    assert torch.equal(read_picture(encode_png(x), (channels, 4, 6), max_pixels=MANY), x)


def test_encoded_png_has_no_metadata():
    chunks = encode_png(torch.zeros(1, 4, 6))
    assert [name for name in (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"tIME", b"iCCP") if name in chunks] == []


def test_magnified_difference_spans_black_to_white():
    shown, times = magnify_difference(torch.tensor([[[-0.1, 0.0, 0.05]]]))
    assert torch.allclose(shown, torch.tensor([[[0.0, 0.5, 0.75]]]))
    assert times == pytest.approx(5)
    nothing, once = magnify_difference(torch.zeros(1, 2, 2))
    assert (nothing == 0.5).all()
    assert once == 1


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 8 / 255, 0.01]))
def test_rounding_to_8_bits_stays_in_the_ball(seed, eps):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (2, 1, 4, 4))).float() / 255
    changed = (x + torch.from_numpy(rng.uniform(-eps, eps, x.shape)).float()).clamp(0, 1)
    written = round_to_8bit(changed, x)
    assert torch.equal((written * 255).round() / 255, written)
    assert (written - x).abs().max() <= eps + 1e-6
    assert (written - changed).abs().max() < 1.01 / 255
