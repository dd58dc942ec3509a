"""Pictures by strangers: only the four formats, and none whose header asks for more memory than is allowed."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from soap.data import load
from soap.data.image_file import PIXELS, _webp_size, opened
from soap.errors import FileError, InputError

SMALL = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8))


def saved(kind, image=SMALL, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_that_says(width, height):
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + saved("PNG")[33:]


def canvas(width, height):
    """A WebP whose canvas is that large and whose one frame is small."""
    small = saved("WEBP", lossless=True)[12:]
    sides = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
    frame = bytes(6) + b"".join((side - 1).to_bytes(3, "little") for side in SMALL.size) + bytes(4) + small
    chunks = [(b"VP8X", bytes((2, 0, 0, 0)) + sides), (b"ANIM", bytes(6)), (b"ANMF", frame)]
    body = b"WEBP" + b"".join(name + struct.pack("<I", len(content)) + content for name, content in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_the_four_formats_are_opened(kind):
    with opened(saved(kind)) as image:
        assert image.size == SMALL.size


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO", "PPM", "TGA", "EPS", "PCX", "SGI"])
def test_others_are_not_whatever_they_are_called(tmp_path, kind):
    """EPS above all, for which Pillow would start a program."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.png").write_bytes(saved(kind))
    with pytest.raises(FileError, match=r"1\.png: cannot be read as an image"):
        load(tmp_path)


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 50}, {"quality": 50, "exif": b"Exif\0\0II*\0"}])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (300, 2), (2, 300), (1000, 999)])
def test_the_size_of_a_webp_is_known_before_it_is_opened(size, options):
    assert _webp_size(saved("WEBP", Image.new("RGB", size), **options)[:30]) == size


LARGE = {
    "PNG": png_that_says(4097, 4096),
    "PNG of two gigapixels": png_that_says(2**16, 2**15),
    "WebP canvas": canvas(4097, 4096),
    "largest WebP canvas": canvas(2**24, 2**8),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("content", LARGE.values(), ids=LARGE)
def test_a_header_that_asks_for_too_much_is_refused(tmp_path, content):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.png").write_bytes(content)
    with pytest.raises((InputError, FileError), match=r"1\.png.*(want at most 16,777,216|exceeds limit)"):
        load(tmp_path)


def test_the_largest_that_is_allowed_is_opened():
    assert PIXELS == 4096 * 4096
    with opened(png_that_says(4096, 4096)) as image, pytest.raises(OSError, match=r"truncated|broken"):
        image.load()  # its pixels are not there


def test_a_set_whose_headers_lie_takes_no_memory_for_all_of_it(tmp_path):
    """A hundred pictures that say 4096 x 4096 would be 1.7 GB; the first shows that they are none."""
    (tmp_path / "class").mkdir()
    for number in range(100):
        (tmp_path / "class" / f"{number}.png").write_bytes(png_that_says(4096, 4096))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"\d\.png: cannot be read as an image"):
            load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
