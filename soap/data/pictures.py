"""Opening a picture that a stranger made: of four formats, and of a size that is looked at before memory is taken."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from soap.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
"""Pillow knows many more, one of which (EPS) starts a program to draw them."""

PIXELS = 2**24
"""Of a picture at most: 4096 x 4096."""

WEBP_HEAD = 30


@contextmanager
def opened(content: bytes) -> Iterator["Image"]:
    """The picture in a file's content; its pixels are not read yet. One that is too large is an InputError.

    A damaged one raises whatever Pillow meets it with. (The content, not the file: asked for the four gigabytes that
    a damaged chunk announces, a file reserves them, and bytes in memory do not.)
    """
    from PIL import Image

    _check(*(_webp_size(content[:WEBP_HEAD]) or (0, 0)))
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        _check(*image.size)
        yield image


def _check(width: int, height: int) -> None:
    if width * height > PIXELS:
        raise InputError(f"the picture is {width} x {height} pixels, want at most {PIXELS:,} in all; make it smaller.")


def _webp_size(head: bytes) -> tuple[int, int] | None:
    """Width and height as a WebP file says them: Pillow's reader takes the memory for them on opening."""
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < WEBP_HEAD:
        return None
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
