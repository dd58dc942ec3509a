"""Data sets and arrays in .npz files, read without executing pickles and without trusting announced sizes.

numpy's own reader allocates what an array's header announces, even terabytes, before it looks at the content.
"""

import io
import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from soap._files import atomic
from soap.data.dataset import SPLITS, Dataset, Values, make_dataset
from soap.errors import FileError, InputError

HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""By format version; later versions exist for field names, which plain numbers do not have."""

COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes; others can expand a few bytes to a gigabyte."""

READ_BYTES = 2**20
MAX_CLASSES = 100_000
IMAGE_CHANNELS = (1, 3)


def read_arrays(
    file: io.BufferedIOBase, wanted: Collection[str] | None = None
) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """The names of all arrays in an archive, and the `wanted` arrays (None: all).

    A damaged archive raises any of the exceptions of numpy and zipfile.
    """
    with zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        chosen = [name for name in members if wanted is None or name in wanted]
        return list(members), {name: _read_array(archive, members[name]) for name in chosen}


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if member.compress_type not in COMPRESSION_METHODS:
        raise ValueError(f"{member.filename} is compressed by a method that numpy does not write")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADER_READERS:
            raise ValueError(f"{member.filename} has format version {version}")
        shape, by_columns, dtype = HEADER_READERS[version](stream)
        if dtype.hasobject or dtype.itemsize == 0:
            raise ValueError(f"{member.filename} contains {dtype}, not plain numbers")
        announced = math.prod(shape) * dtype.itemsize
        content = bytearray()
        # Up to one byte more than announced: zipfile compares the checksum at the end of the member.
        while len(content) <= announced and (chunk := stream.read(min(READ_BYTES, announced + 1 - len(content)))):
            content += chunk
    if len(content) != announced:
        raise ValueError(f"the header of {member.filename} announces {announced} bytes, the content differs")
    return np.ndarray(shape, dtype, content, order="F" if by_columns else "C")


def read_npz(path: Path, wanted: Collection[str]) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """As `read_arrays`, of a file; a file that cannot be read raises a `FileError`."""
    with atomic.file_errors(path):
        content = path.read_bytes()
    try:
        return read_arrays(io.BytesIO(content), wanted)
    # numpy and zipfile raise many kinds of exception for pickles and damage (ValueError, BadZipFile, RuntimeError ...).
    except Exception as error:
        raise FileError(
            f"{path}: not a complete .npz of plain numbers ({error}); create one with numpy.savez(path, x=x, y=y)."
        ) from error


def load_npz(path: Path, split: str) -> Dataset:
    """Inputs `x` and labels `y`, or `x_train`, `y_train`, `x_test` and `y_test`, of an .npz file.

    Inputs are bytes (divided by 255) or floats in [0, 1], with shape [n, height, width] (grey),
    [n, channels, height, width] or [n, height, width, channels] with 1 or 3 channels; other ranks are kept. Labels are
    class numbers from 0; the highest label in the file determines the number of classes. A file with plain `x` and
    `y` returns them for either split.
    """
    label_keys = [f"y_{name}" for name in SPLITS]
    names, arrays = read_npz(path, (f"x_{split}", *label_keys, "x", "y"))
    divided = f"x_{split}" in names
    x_key, y_key = (f"x_{split}", f"y_{split}") if divided else ("x", "y")
    for key in (x_key, y_key):
        if key not in arrays:
            found = ", ".join(names) or "no array"
            raise InputError(f"{path} contains {found}; expected {key!r} (x and y, or x_{split} and y_{split}).")
    every = [key for key in label_keys if key in arrays] if divided else ["y"]
    classes = 1 + max(_highest_label(arrays[key], f"{path}: {key}") for key in every)
    x, y = arrays[x_key], arrays[y_key]
    if x.ndim < 2 or x.size == 0 or len(x) != len(y):
        raise InputError(
            f"{path}: {x_key} has shape {x.shape} and {y_key} {y.shape}; expected [n, ...] and [n], "
            "one label for each input."
        )
    values = _channels_first(_checked_values(x, f"{path}: {x_key}"), f"{path}: {x_key}")
    return make_dataset(path.name, split, values, y, [str(number) for number in range(classes)])


def _highest_label(y: npt.NDArray[Any], what: str) -> int:
    if y.dtype.kind not in "iu" or y.ndim != 1 or len(y) == 0:
        raise InputError(f"{what} is {y.dtype} {y.shape}; expected integers with shape [n], one class for each input.")
    if y.min() < 0 or y.max() >= MAX_CLASSES:
        raise InputError(
            f"{what} runs from {y.min()} to {y.max()}; expected class numbers from 0, below {MAX_CLASSES}."
        )
    return int(y.max())


def _checked_values(x: npt.NDArray[Any], what: str) -> Values:
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.floating):
        raise InputError(f"{what} is {x.dtype}; expected uint8 (0 to 255) or floats in [0, 1].")
    low, high = float(x.min()), float(x.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InputError(f"{what} contains NaN or infinite values; expected finite values in [0, 1].")
    if low < 0 or high > 1:
        hint = " Save 0..255 as uint8 or divide by 255." if low >= 0 and 1 < high <= 255 else ""
        raise InputError(f"{what} runs from {low:g} to {high:g}; expected values in [0, 1].{hint}")
    return x.astype(np.float32)


def _channels_first(x: Values, what: str) -> Values:
    """Images as NCHW; inputs of other ranks are returned unchanged."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        return x
    first, last = x.shape[1] in IMAGE_CHANNELS, x.shape[3] in IMAGE_CHANNELS
    if first == last:
        why = "could be channels-first or channels-last" if first else "has neither 1 nor 3 channels"
        raise InputError(f"{what} has shape {x.shape}, which {why}; expected [n, channels, height, width].")
    return x if first else x.transpose(0, 3, 1, 2)
