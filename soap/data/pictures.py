"""Decode untrusted picture files into tensors, encode tensors as PNG, and round to 8 bits.

The command line, the folder reader and the service share this reader, so each reads a file in the same way:

- formats: PNG, JPEG, WebP and BMP, recognised by their first bytes and not by the file name. Others are refused; GIF,
  TIFF, AVIF and HEIC files of a folder are an error, not skipped;
- limits: the size in the header is checked before memory is allocated; a JPEG with more than 100 scans and a file that
  ends early are refused;
- orientation: the EXIF orientation is applied;
- transparency: composed over white, as browsers and viewers show it;
- 16 bits per channel: the upper 8 bits are kept;
- animation: the first frame is read;
- colour: converted to grey or RGB, as requested.
"""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from soap._files import atomic
from soap.errors import FileError, InputError
from soap.shapes import Float, Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
"""Pillow reads many more; one of them (EPS) starts an external program."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
"""File names of these formats."""

REFUSED_SUFFIXES = (".gif", ".tif", ".tiff", ".avif", ".heic")
"""File names of pictures that are refused: without them, a folder would be read in part."""

MAX_PIXELS = 2**24
"""Width times height at most: 4096 x 4096."""

MAX_JPEG_SCANS = 100
"""A progressive JPEG with n scans is decoded n times; cameras write about ten."""

LEVEL_TOLERANCE = 1e-3
"""A whole number of 8-bit levels, computed in float32, is off by less than this part of a level."""

GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
WEBP_HEADER_BYTES = 30
JPEG_SCAN_MARKER = b"\xff\xda"


class UnsupportedPictureError(FileError):
    """The content is in none of the formats that are read."""


class UnreadablePictureError(FileError):
    """The picture is damaged, ends early, or is too costly to decode."""


class PictureTooLargeError(InputError):
    """The picture has more pixels than allowed."""


def read_picture(
    source: bytes | Path,
    shape: Sequence[int],
    *,
    resize: bool = False,
    invert: bool = False,
    max_pixels: int = MAX_PIXELS,
    formats: Sequence[str] = FORMATS,
) -> Float[Tensor, "c h w"]:
    """Decode a picture, given as bytes or as a path, into a tensor of `shape` (channels, height, width) in [0, 1].

    resize: scale another size to `shape`, width and height independently (bilinear); otherwise it is an error.
    invert: swap dark and light, for dark digits on white, since MNIST digits are light on black.
    """
    from PIL import Image

    channels, height, width = shape
    image = _decode(source, channels, max_pixels, formats)
    if image.size != (width, height):
        if not resize:
            raise InputError(
                f"{_name(source)} is {image.width} x {image.height} pixels, expected {width} x {height}; resize it, "
                "e.g. with --resize."
            )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.ascontiguousarray(_pixels(image))).float().div(255)
    return 1 - x if invert else x


def read_pixels(source: bytes | Path) -> npt.NDArray[np.uint8]:
    """Decode a picture into bytes [channels, height, width] of its own size: one channel if it is grey, else three."""
    return _pixels(_decode(source, None, MAX_PIXELS, FORMATS))


def is_picture(path: Path) -> bool:
    """Whether a folder's entry is a picture by its name, which may be one that the reader refuses."""
    return path.suffix.lower() in SUFFIXES + REFUSED_SUFFIXES and path.is_file()


def is_light(x: Float[Tensor, "n c h w"]) -> Tensor:
    """Which images are light at their border, like paper."""
    inside = x[..., 1:-1, 1:-1]
    border = x.flatten(1).sum(1) - inside.flatten(1).sum(1)
    return border > 0.5 * (x[0].numel() - inside[0].numel())


def _pixels(image: "Image") -> npt.NDArray[np.uint8]:
    return np.atleast_3d(np.array(image)).transpose(2, 0, 1)


def _decode(source: bytes | Path, channels: int | None, max_pixels: int, formats: Sequence[str]) -> "Image":
    """A Pillow image in mode L or RGB, with orientation, transparency and bit depth resolved."""
    # The bytes, not the open file: for a corrupt length field a file allocates gigabytes, bytes in memory do not.
    name = _name(source)
    if isinstance(source, Path):
        with atomic.file_errors(source):
            content = source.read_bytes()
    else:
        content = source
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError("reading image files needs Pillow; install it with `pip install pillow`.") from error
    kind = _format(content)
    if kind not in formats:
        known = f"{name}: not an image in one of the formats {', '.join(formats)}"
        raise UnsupportedPictureError(f"{known}{f', but {kind}' if kind else ''}; save it as PNG, or remove it.")
    if kind == "WEBP" and len(content) >= WEBP_HEADER_BYTES:  # its decoder allocates the pixels when it opens the file
        _check_size(name, webp_size(content[:WEBP_HEADER_BYTES]), max_pixels)
    if kind == "JPEG" and content.count(JPEG_SCAN_MARKER) > MAX_JPEG_SCANS:
        raise UnreadablePictureError(
            f"{name}: the JPEG has more than {MAX_JPEG_SCANS} scans; save it as a baseline JPEG or a PNG."
        )
    try:
        if kind == "PNG" and b"IEND" not in content:  # Pillow does not notice
            raise EOFError("the end of the file is missing")
        opened = _open(kind, content)
        _check_size(name, opened.size, max_pixels)
        image = ImageOps.exif_transpose(opened)
        image.load()
        if image.mode not in GREY_MODES + COLOUR_MODES:
            raise InputError(f"{name} has colour mode {image.mode}; expected grey or RGB. Convert it first.")
        target = {None: "L" if image.mode in GREY_MODES else "RGB", 1: "L", 3: "RGB"}[channels]
        if image.mode.startswith("I"):
            deep, transparent = np.asarray(image), image.info.get("transparency")  # a level of 16 bits, or None
            image = Image.fromarray(np.where(deep == transparent, 255, deep >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        return image.convert(target)
    except InputError:
        raise
    # Pillow's decoders raise many kinds of exception for a damaged file (OSError, SyntaxError, struct.error ...).
    except Exception as error:
        raise UnreadablePictureError(
            f"{name}: the image is damaged or incomplete ({error}); replace or remove it."
        ) from error


def _format(content: bytes) -> str:
    """The format by the first bytes, or ""."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    signatures = {"PNG": b"\x89PNG\r\n\x1a\n", "JPEG": b"\xff\xd8\xff", "BMP": b"BM", "GIF": b"GIF8"}
    return next((name for name, start in signatures.items() if content.startswith(start)), "")


def _open(kind: str, content: bytes) -> "Image":
    """The image behind its header, its pixels not read yet; `Image.open` would warn about large images on its own."""
    from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    readers: dict[str, Callable[[io.BytesIO], Image]] = {
        "PNG": PngImagePlugin.PngImageFile,
        "JPEG": JpegImagePlugin.JpegImageFile,
        "WEBP": WebPImagePlugin.WebPImageFile,
        "BMP": BmpImagePlugin.BmpImageFile,
    }
    return readers[kind](io.BytesIO(content))


def _check_size(name: str, size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        raise PictureTooLargeError(
            f"{name} is {size[0]} x {size[1]} pixels, expected at most {max_pixels:,} in all; make it smaller."
        )


def webp_size(header: bytes) -> tuple[int, int]:
    """Width and height from the first 30 bytes of a WebP file."""
    if header[12:16] == b"VP8X":
        return 1 + int.from_bytes(header[24:27], "little"), 1 + int.from_bytes(header[27:30], "little")
    if header[12:16] == b"VP8L":
        bits = int.from_bytes(header[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(header[26:28], "little") & 0x3FFF, int.from_bytes(header[28:30], "little") & 0x3FFF


def _name(source: bytes | Path) -> str:
    return str(source) if isinstance(source, Path) else "the picture"


def round_to_8bit(
    changed: Float[Tensor, "batch *shape"], x: Float[Tensor, "batch *shape"], *, away: bool = False
) -> Float[Tensor, "batch *shape"]:
    """`changed` in 256 levels, each value rounded towards that of `x`, so that a perturbation stays in its ball.

    away: round away from `x` where the value moved by a quarter of a level or more, so that rounding does not undo a
    minimal perturbation.
    """
    levels = (x * 255).round()
    moved = changed * 255 - levels
    if away:
        steps = torch.where(moved.abs() >= 0.25, moved.sign() * (moved.abs() - LEVEL_TOLERANCE).ceil(), 0)
    else:
        steps = (moved + LEVEL_TOLERANCE * moved.sign()).trunc()
    return ((levels + steps) / 255).clamp(0, 1)


def to_uint8(x: Float[Tensor, "c h w"]) -> npt.NDArray[np.uint8]:
    """An image in [0, 1] as the bytes that Pillow takes: [h, w] for one channel, [h, w, 3] for three."""
    pixels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels


def encode_png(x: Float[Tensor, "c h w"]) -> bytes:
    """An image in [0, 1] as a PNG file with 8 bits per channel and no metadata."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(to_uint8(x)).save(buffer, format="PNG")
    return buffer.getvalue()


def base64_png(x: Float[Tensor, "c h w"]) -> str:
    """`encode_png` as text, for JSON and HTML."""
    return base64.b64encode(encode_png(x)).decode()


def magnify_difference(difference: Float[Tensor, "c h w"]) -> tuple[Float[Tensor, "c h w"], float]:
    """The difference of two images around mid grey, scaled so that its largest value is black or white; the factor."""
    largest = float(difference.abs().max())
    if largest == 0:
        return torch.full_like(difference, 0.5), 1.0
    return (0.5 + difference / (2 * largest)).clamp(0, 1), 0.5 / largest
