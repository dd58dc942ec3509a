"""Filters without training (feature squeezing, Xu et al. 2018): median filter, bit-depth reduction and JPEG."""

import io

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from soap import validate
from soap.errors import InputError
from soap.purifiers.purifier import ImageMap
from soap.shapes import Float, Tensor

MAX_BITS = 16
MAX_QUALITY = 95
"""Pillow's recommended limit: above it, files grow and hardly change."""


class MedianFilter(ImageMap):
    """`MedianFilter(size)(x)` replaces every value by the median of the `size` x `size` window around it.

    Edges are mirrored. An even window extends further to the left and above; of its two middle values the larger one is
    taken, as by scipy. The gradient is exact: it goes to the selected value.
    """

    setting_names = ("size",)

    def __init__(self, size: int = 3) -> None:
        validate.at_least("size", size, 1)
        self.size = size

    def images(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return the filtered images."""
        before, after = self.size // 2, (self.size - 1) // 2
        if x.ndim != 4 or before >= min(x.shape[2:]):
            raise InputError(
                f"got images {list(x.shape)} for a window of {self.size}, expected [batch, c, h, w] with sides larger "
                f"than {before}."
            )
        padded = F.pad(x, (before, after, before, after), mode="reflect")
        windows = padded.unfold(2, self.size, 1).unfold(3, self.size, 1).flatten(4)
        return windows.sort(4).values[..., self.size**2 // 2]


class BitDepth(ImageMap):
    """`BitDepth(bits)(x)` rounds every value to one of 2^bits equally spaced levels from 0 to 1."""

    gradient = "straight-through"
    setting_names = ("bits",)

    def __init__(self, bits: int = 4) -> None:
        validate.at_least("bits", bits, 1)
        if bits > MAX_BITS:
            raise InputError(f"bits is {bits}, expected at most {MAX_BITS}.")
        self.bits = bits

    def images(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the rounded images."""
        top = float(2**self.bits - 1)
        return (x * top).round() / top


class JpegCompression(ImageMap):
    """`JpegCompression(quality)(x)` stores every image as a JPEG file and reads it again, by Pillow.

    quality: 1 (smallest file) to 95. Images have one channel (grey) or three (RGB), and are first rounded to 8 bits.
    """

    gradient = "straight-through"
    setting_names = ("quality",)

    def __init__(self, quality: int = 75) -> None:
        validate.at_least("quality", quality, 1)
        if quality > MAX_QUALITY:
            raise InputError(f"quality is {quality}, expected at most {MAX_QUALITY}.")
        self.quality = quality

    def images(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return the images after compression."""
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(f"got images {list(x.shape)}, expected [batch, c, h, w] with 1 channel (grey) or 3 (RGB).")
        levels = (x.detach() * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        files = np.stack([self._compressed(image) for image in levels])
        return torch.from_numpy(files).permute(0, 3, 1, 2).to(x) / 255

    def _compressed(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the 8-bit image [h, w, c] after compression."""
        from PIL import Image

        file = io.BytesIO()
        grey = image.shape[2] == 1
        Image.fromarray(image[:, :, 0] if grey else image).save(file, "JPEG", quality=self.quality)
        return np.array(Image.open(file)).reshape(image.shape)
