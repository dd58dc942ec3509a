"""MNIST's pairs of IDX files: images of 28 x 28 bytes, and a label byte 0 to 9 for each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap.data.idx import read_idx
from soap.errors import FileError

DIGITS = tuple(str(digit) for digit in range(10))


def read_mnist(paths: Sequence[Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images [n, 1, 28, 28] and labels [n] of a file of images and its file of labels."""
    images, labels = paths
    pixels, digits = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise FileError(f"{images}: its images are {pixels.shape[1]} x {pixels.shape[2]}; wanted 28 x 28.")
    if len(pixels) != len(digits):
        raise FileError(
            f"{images} holds {len(pixels)} images and {labels} {len(digits)} labels; wanted one for each. "
            "They are of different sets; get both again."
        )
    if digits.max() >= len(DIGITS):
        first = int(np.argmax(digits >= len(DIGITS)))
        raise FileError(f"{labels}: label {first} is {digits[first]}; wanted 0 to 9. The file is damaged.")
    return pixels[:, None], digits
