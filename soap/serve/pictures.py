"""Pictures in and out: PNG and JPEG bytes as the model takes them, and images as base64 PNG.

Pictures are told by their first bytes, whatever they are called. Nothing but their pixels is kept.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from soap.serve.problems import RequestError
from soap.shapes import Float, Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
PNG_END = b"IEND"
SCAN = b"\xff\xda"
SCANS = 100
"""A progressive JPEG of n scans is decoded n times; cameras write about ten."""

ROUNDING = 1e-3
"""A walk of whole grey levels misses them in float32 by less than this part of one."""


def decode(body: bytes, shape: Sequence[int], *, pixels: int, invert: bool = False) -> Float[Tensor, "c h w"]:
    """A picture of at most `pixels` pixels, as an image of `shape` (channels, height, width) in [0, 1].

    Turned as its EXIF says; transparency lies over white; colour becomes grey, or grey RGB, as the model wants. Width
    and height are scaled each by itself (bilinear). `invert` swaps dark and light: digits are light on dark.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _readable():
        opened = _open(body)
    if opened.width * opened.height > pixels:
        size = f"{opened.width} x {opened.height}"
        raise RequestError(413, f"the picture is {size} pixels, want at most {pixels:,} in all; send a smaller one.")
    with _readable():
        image = ImageOps.exif_transpose(opened)
        image.load()
        if image.mode.startswith("I"):  # 16 bits a pixel: keep the upper 8
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    levels = np.array(image).reshape(height, width, channels).transpose(2, 0, 1)
    x = torch.from_numpy(np.ascontiguousarray(levels)).float().div(255)
    return 1 - x if invert else x


def _open(body: bytes) -> "Image":
    """The picture's header; its pixels are not read yet.

    Pillow's own `open` would try other formats too, and warn of bombs in its own way.
    """
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    if body.startswith(PNG):
        if PNG_END not in body:  # Pillow would not miss it
            raise EOFError
        return PngImageFile(io.BytesIO(body))
    if body.startswith(JPEG):
        if body.count(SCAN) > SCANS:
            raise RequestError(422, f"the JPEG has more than {SCANS} scans; save it as a baseline JPEG or a PNG.")
        return JpegImageFile(io.BytesIO(body))
    raise RequestError(415, "the body is not a PNG or JPEG picture; send one of these.")


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except RequestError:
        raise
    # Pillow's decoders meet a damaged file with many kinds of exception (OSError, SyntaxError, struct.error ...).
    except Exception as problem:
        raise RequestError(422, "the picture is damaged or cut short; send a whole PNG or JPEG file.") from problem


def encode(x: Float[Tensor, "c h w"]) -> str:
    """An image in [0, 1] as base64 PNG."""
    return base64.b64encode(encode_png(x)).decode()


def encode_png(x: Float[Tensor, "c h w"]) -> bytes:
    """An image in [0, 1] as a PNG file of 8 bits a channel."""
    from PIL import Image

    levels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(buffer, format="PNG")
    return buffer.getvalue()


def magnified(difference: Float[Tensor, "c h w"]) -> tuple[Float[Tensor, "c h w"], float]:
    """The difference about mid grey, its largest value at black or white; and how many times that magnifies it."""
    largest = float(difference.abs().max())
    if largest == 0:
        return torch.full_like(difference, 0.5), 1.0
    return (0.5 + difference / (2 * largest)).clamp(0, 1), 0.5 / largest


def on_levels(
    changed: Float[Tensor, "batch *shape"], x: Float[Tensor, "batch *shape"]
) -> Float[Tensor, "batch *shape"]:
    """`changed` in 256 levels, each value rounded towards that of `x`, so that a perturbation stays in its ball."""
    levels = (x * 255).round()
    moved = changed * 255 - levels
    return ((levels + (moved + ROUNDING * moved.sign()).trunc()) / 255).clamp(0, 1)
