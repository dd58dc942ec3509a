"""Decode untrusted PNG and JPEG pictures into tensors, encode tensors as PNG, and round to 8 bits.

The functions have the names and parameters of the shared reader in `soap.data.pictures`, which replaces this file.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from soap.errors import FileError, InputError
from soap.shapes import Float, Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_JPEG_SCANS = 100
"""A progressive JPEG with n scans is decoded n times; cameras write about ten."""

LEVEL_TOLERANCE = 1e-3
"""A whole number of 8-bit levels, computed in float32, is off by less than this part of a level."""


class UnsupportedPictureError(FileError):
    """The content is neither PNG nor JPEG."""


class UnreadablePictureError(FileError):
    """The picture is damaged, ends early, or is too costly to decode."""


class PictureTooLargeError(InputError):
    """The picture has more pixels than allowed."""


def read_picture(
    source: bytes,
    shape: Sequence[int],
    *,
    resize: bool = True,
    invert: bool = False,
    max_pixels: int,
    formats: Sequence[str] = ("PNG", "JPEG"),
) -> Float[Tensor, "c h w"]:
    """Decode a picture into a tensor of `shape` (channels, height, width) in [0, 1].

    The EXIF orientation is applied, transparency is composed over white, and colour is converted to grey or RGB. Width
    and height are scaled independently (bilinear). invert: swap dark and light, for dark digits on white.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    try:
        opened = _open(source)
        if opened.width * opened.height > max_pixels:
            size = f"{opened.width} x {opened.height}"
            raise PictureTooLargeError(
                f"the picture is {size} pixels, expected at most {max_pixels:,} in all; make it smaller."
            )
        image = ImageOps.exif_transpose(opened)
        image.load()
        if image.mode.startswith("I"):  # 16 bits per pixel: keep the upper 8
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    except (UnsupportedPictureError, UnreadablePictureError, PictureTooLargeError):
        raise
    # Pillow's decoders raise many kinds of exception for a damaged file (OSError, SyntaxError, struct.error ...).
    except Exception as error:
        raise UnreadablePictureError("the picture is damaged or incomplete; send a whole PNG or JPEG file.") from error
    levels = np.array(image).reshape(height, width, channels).transpose(2, 0, 1)
    x = torch.from_numpy(np.ascontiguousarray(levels)).float().div(255)
    return 1 - x if invert else x


def _open(source: bytes) -> "Image":
    """The image behind its header, its pixels not read yet. `Image.open` would try other formats and warn by itself."""
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    if source.startswith(b"\x89PNG\r\n\x1a\n"):
        if b"IEND" not in source:  # Pillow does not notice
            raise EOFError
        return PngImageFile(io.BytesIO(source))
    if source.startswith(b"\xff\xd8\xff"):
        if source.count(b"\xff\xda") > MAX_JPEG_SCANS:
            raise UnreadablePictureError(
                f"the JPEG has more than {MAX_JPEG_SCANS} scans; save it as a baseline JPEG or a PNG."
            )
        return JpegImageFile(io.BytesIO(source))
    raise UnsupportedPictureError("the body is not a PNG or JPEG picture; send one of these.")


def encode_png(x: Float[Tensor, "c h w"]) -> bytes:
    """An image in [0, 1] as a PNG file with 8 bits per channel and no metadata."""
    from PIL import Image

    levels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(buffer, format="PNG")
    return buffer.getvalue()


def magnify_difference(difference: Float[Tensor, "c h w"]) -> tuple[Float[Tensor, "c h w"], float]:
    """The difference of two images around mid grey, scaled so that its largest value is black or white; the factor."""
    largest = float(difference.abs().max())
    if largest == 0:
        return torch.full_like(difference, 0.5), 1.0
    return (0.5 + difference / (2 * largest)).clamp(0, 1), 0.5 / largest


def round_to_8bit(
    changed: Float[Tensor, "batch *shape"], x: Float[Tensor, "batch *shape"]
) -> Float[Tensor, "batch *shape"]:
    """`changed` in 256 levels, each value rounded towards that of `x`, so that a perturbation stays in its ball."""
    levels = (x * 255).round()
    moved = changed * 255 - levels
    return ((levels + (moved + LEVEL_TOLERANCE * moved.sign()).trunc()) / 255).clamp(0, 1)
