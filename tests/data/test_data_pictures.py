"""The picture reader: formats, limits, EXIF, transparency, bit depth, animation; 8-bit rounding and PNG encoding."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from soap.data import load
from soap.data.picture_files import read_files
from soap.data.pictures import (
    MAX_PIXELS,
    PictureTooLargeError,
    UnreadablePictureError,
    UnsupportedPictureError,
    encode_png,
    magnify_difference,
    read_picture,
    read_pixels,
    round_to_8bit,
    webp_size,
)
from soap.errors import FileError, InputError

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (9, 7, 3), np.uint8)  # height 9, width 7
GREY = RANDOM.integers(0, 256, (9, 7), np.uint8)
SMALL = Image.fromarray(COLOUR)
ORIENTATION_TAG, ROTATE_90 = 0x0112, 6


def saved(kind, image=SMALL, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def oriented():
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = ROTATE_90
    return exif


def png_that_announces(width, height):
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + saved("PNG")[33:]


def webp_that_announces(width, height):
    """A WebP file with a large canvas and one small frame."""
    small = saved("WEBP", lossless=True)[12:]
    sides = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
    frame = bytes(6) + b"".join((side - 1).to_bytes(3, "little") for side in SMALL.size) + bytes(4) + small
    chunks = [(b"VP8X", bytes((2, 0, 0, 0)) + sides), (b"ANIM", bytes(6)), (b"ANMF", frame)]
    body = b"WEBP" + b"".join(name + struct.pack("<I", len(content)) + content for name, content in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp_that_announces(width, height):
    content = saved("BMP")
    return content[:18] + struct.pack("<ii", width, height) + content[26:]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_four_formats_are_read_from_bytes_and_from_a_path(tmp_path, kind):
    content = saved(kind)
    (tmp_path / "picture.dat").write_bytes(content)
    x = read_picture(content, (3, 9, 7))
    assert x.shape == (3, 9, 7)
    assert x.dtype == torch.float32
    assert torch.equal(x, read_picture(tmp_path / "picture.dat", (3, 9, 7)))
    if kind in ("PNG", "BMP"):
        assert torch.equal(x, torch.from_numpy(COLOUR.transpose(2, 0, 1).copy()).float() / 255)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO", "PPM", "TGA", "EPS", "PCX", "SGI"])
def test_other_formats_are_refused_whatever_the_file_name(tmp_path, kind):
    """EPS above all, for which Pillow starts an external program."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.png").write_bytes(saved(kind))
    with pytest.raises(UnsupportedPictureError, match=r"1\.png: not an image in one of the formats PNG, JPEG"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["1.gif", "1.tif"])
def test_a_folder_with_a_picture_of_another_format_is_not_read_in_part(tmp_path, name):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "0.png").write_bytes(saved("PNG"))
    (tmp_path / "class" / name).write_bytes(saved("GIF" if name == "1.gif" else "TIFF"))
    model = torch.nn.Linear(1, 1)
    model.input_shape = (3, 9, 7)
    for read in (load, lambda folder: read_files([folder], model)):
        with pytest.raises(UnsupportedPictureError, match=f"{name}: not an image.*save it as PNG"):
            read(tmp_path)


def test_the_caller_can_allow_fewer_formats():
    with pytest.raises(UnsupportedPictureError, match="PNG, JPEG"):
        read_picture(saved("WEBP"), (3, 9, 7), formats=("PNG", "JPEG"))


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 50}, {"quality": 50, "exif": b"Exif\0\0II*\0"}])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (300, 2), (2, 300), (1000, 999)])
def test_the_size_of_a_webp_is_known_before_it_is_opened(size, options):
    assert webp_size(saved("WEBP", Image.new("RGB", size), **options)[:30]) == size


LARGE = {
    "PNG": png_that_announces(4097, 4096),
    "PNG of two gigapixels": png_that_announces(2**16, 2**15),
    "WebP canvas": webp_that_announces(4097, 4096),
    "largest WebP canvas": webp_that_announces(2**24, 2**8),
    "BMP": bmp_that_announces(2**15, 2**15),
}


@pytest.mark.parametrize("content", LARGE.values(), ids=LARGE)
def test_a_header_that_announces_too_many_pixels_is_refused(tmp_path, content):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.png").write_bytes(content)
    with pytest.raises(PictureTooLargeError, match=r"1\.png.*at most 16,777,216"):
        load(tmp_path)


def test_the_pixel_limit_is_inclusive():
    assert MAX_PIXELS == 4096 * 4096
    with pytest.raises(UnreadablePictureError):  # allowed by its size; its pixels are missing
        read_pixels(png_that_announces(4096, 4096))
    read_picture(saved("PNG"), (3, 9, 7), max_pixels=63)
    with pytest.raises(PictureTooLargeError, match="7 x 9 pixels, expected at most 62"):
        read_picture(saved("PNG"), (3, 9, 7), max_pixels=62)


def test_false_headers_of_many_files_allocate_little_memory(tmp_path):
    """A hundred pictures that announce 4096 x 4096 would be 1.7 GB; the first one fails."""
    (tmp_path / "class").mkdir()
    for number in range(100):
        (tmp_path / "class" / f"{number}.png").write_bytes(png_that_announces(4096, 4096))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"\d\.png: the image is damaged"):
            load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_an_incomplete_file_is_refused(kind, share):
    content = saved(kind)
    with pytest.raises((UnreadablePictureError, UnsupportedPictureError)):
        read_picture(content[: int(share * len(content))], (3, 9, 7))


def test_a_jpeg_with_too_many_scans_is_refused_before_it_is_decoded():
    with pytest.raises(UnreadablePictureError, match="100 scans"):
        read_picture(saved("JPEG") + b"\xff\xda" * 200, (3, 9, 7))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_exif_orientation_is_applied(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    content = saved(kind, exif=oriented(), **options)
    assert np.array_equal(read_pixels(content), np.rot90(COLOUR, -1).transpose(2, 0, 1))
    assert read_picture(content, (3, 7, 9)).shape == (3, 7, 9)


def test_transparency_is_composed_over_white():
    pixels = np.zeros((1, 3, 4), np.uint8)  # black: opaque, half transparent, transparent
    pixels[0, :, 3] = (255, 128, 0)
    colour = read_pixels(saved("PNG", Image.fromarray(pixels)))
    assert colour[:, 0].T.tolist() == [[0] * 3, [127] * 3, [255] * 3]
    assert read_pixels(saved("PNG", Image.fromarray(pixels).convert("LA")))[0, 0].tolist() == [0, 127, 255]
    palette = Image.fromarray(np.array([[0, 1]], np.uint8))
    palette.putpalette([9, 9, 9, 8, 8, 8])
    assert read_pixels(saved("PNG", palette, transparency=0))[:, 0].T.tolist() == [[255] * 3, [8] * 3]


def test_opaque_alpha_changes_nothing():
    assert np.array_equal(read_pixels(saved("PNG", SMALL.convert("RGBA"))), COLOUR.transpose(2, 0, 1))
    assert np.array_equal(read_pixels(saved("PNG", Image.fromarray(GREY).convert("LA"))), GREY[None])


def test_the_upper_8_of_16_bits_are_kept():
    deep = GREY.astype(np.uint16) * 256 + RANDOM.integers(0, 256, GREY.shape).astype(np.uint16)
    assert np.array_equal(read_pixels(saved("PNG", Image.fromarray(deep))), GREY[None])
    transparent = saved("PNG", Image.fromarray(np.array([[0, 5000, 65535]], np.uint16)), transparency=5000)
    assert read_pixels(transparent)[0, 0].tolist() == [0, 255, 255]


def test_the_first_frame_of_an_animation_is_read():
    other = Image.fromarray(255 - COLOUR)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        content = saved(kind, save_all=True, append_images=[other], **options)
        assert np.array_equal(read_pixels(content), COLOUR.transpose(2, 0, 1)), kind


def test_black_and_white_palette_and_cmyk_are_converted():
    bits = Image.fromarray(GREY > 100)
    assert np.array_equal(read_pixels(saved("PNG", bits)), (GREY > 100)[None] * np.uint8(255))
    assert read_pixels(saved("JPEG", SMALL.convert("CMYK"))).shape == (3, 9, 7)
    assert read_pixels(saved("PNG", SMALL.convert("P"))).shape == (3, 9, 7)


def test_colour_is_converted_as_the_shape_asks():
    assert torch.equal(
        read_picture(saved("PNG", Image.fromarray(GREY)), (3, 9, 7)),
        (torch.from_numpy(GREY) / 255).expand(3, 9, 7),
    )
    grey = np.asarray(SMALL.convert("L"))
    assert torch.equal(read_picture(saved("PNG"), (1, 9, 7)), torch.from_numpy(grey.copy())[None] / 255)


def test_another_size_is_scaled_only_on_request():
    with pytest.raises(InputError, match="7 x 9 pixels, expected 5 x 4"):
        read_picture(saved("PNG"), (3, 4, 5))
    scaled = np.asarray(SMALL.resize((5, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert torch.equal(read_picture(saved("PNG"), (3, 4, 5), resize=True), torch.from_numpy(scaled.copy()) / 255)


def test_invert_swaps_dark_and_light():
    assert torch.equal(read_picture(saved("PNG"), (3, 9, 7), invert=True), 1 - read_picture(saved("PNG"), (3, 9, 7)))


def test_encoded_png_is_read_back_unchanged():
    for pixels in (COLOUR.transpose(2, 0, 1), GREY[None]):
        x = torch.from_numpy(pixels.copy()).float() / 255
        assert torch.equal(read_picture(encode_png(x), x.shape), x)


def test_rounding_goes_towards_the_input():
    x = torch.tensor([10.0, 10.0, 10.0, 10.0, 0.0, 255.0])[None] / 255
    changed = torch.tensor([12.9, 7.1, 11.9999, 10.0, 0.4, 254.6])[None] / 255
    expected = torch.tensor([12.0, 8.0, 12.0, 10.0, 0.0, 255.0])[None] / 255  # 11.9999: a whole level but for rounding
    assert torch.equal(round_to_8bit(changed, x), expected)


def test_rounding_away_keeps_small_changes():
    x = torch.tensor([10.0, 10.0, 10.0, 10.0])[None] / 255
    changed = torch.tensor([10.3, 9.7, 10.2, 12.0])[None] / 255
    assert torch.equal(round_to_8bit(changed, x, away=True), torch.tensor([11.0, 9.0, 10.0, 12.0])[None] / 255)


def test_a_difference_is_magnified_around_mid_grey():
    panel, factor = magnify_difference(torch.tensor([[[0.0, 0.1, -0.05]]]))
    assert panel.flatten().tolist() == pytest.approx([0.5, 1.0, 0.25])
    assert factor == pytest.approx(5)
    assert torch.equal(magnify_difference(torch.zeros(1, 2, 2))[0], torch.full((1, 2, 2), 0.5))
