"""The user's own data as one .npz file: `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from soap.data.arrays import read_arrays
from soap.data.dataset import SPLITS, Dataset, Values, dataset
from soap.errors import FileError, InputError

MAX_CLASSES = 100_000
CHANNELS = (1, 3)


def load_npz(path: Path, split: str) -> Dataset:
    """Inputs and labels of an .npz file; pickles in it are never opened.

    Inputs are bytes (divided by 255) or floats in [0, 1], with shape [n, height, width] (grey),
    [n, channels, height, width] or [n, height, width, channels] with 1 or 3 channels; other ranks are kept as
    they are. Labels are class numbers from 0, and as many classes are made as the file's highest label asks for.
    A file with plain `x` and `y` serves them for either split.
    """
    names, arrays = _arrays(path, split)
    x_key, y_key = (f"x_{split}", f"y_{split}") if f"x_{split}" in arrays else ("x", "y")
    for key in (x_key, y_key):
        if key not in arrays:
            raise InputError(
                f"{path}: holds {', '.join(names) or 'nothing'}; wanted {key!r} (x and y, or x_{split} and y_{split})."
            )
    classes = 1 + max(_highest(array, f"{path}: {key}") for key, array in arrays.items() if key != x_key)
    x, y = arrays[x_key], arrays[y_key]
    if x.ndim < 2 or x.size == 0 or len(x) != len(y):
        raise InputError(
            f"{path}: {x_key} has shape {x.shape} and {y_key} {y.shape}; wanted [n, ...] and [n], "
            "one label for each input."
        )
    values = _layout(_values(x, f"{path}: {x_key}"), f"{path}: {x_key}")
    return dataset(path.name, split, values, y, [str(number) for number in range(classes)])


def _arrays(path: Path, split: str) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """What the file holds by name, and of it the inputs of the split and the labels of all splits."""
    divided, plain = (f"x_{split}", *(f"y_{name}" for name in SPLITS)), ("x", "y")
    try:
        with path.open("rb") as file:
            names, arrays = read_arrays(file, (*divided, *plain))
    # numpy and zipfile meet pickles and damage with many kinds of exception (ValueError, BadZipFile, RuntimeError ...).
    except Exception as problem:
        raise FileError(
            f"{path}: cannot be read ({problem}); wanted an .npz of plain numbers, made by numpy.savez(path, x=x, y=y)."
        ) from problem
    keys = divided if f"x_{split}" in names else plain
    return names, {key: arrays[key] for key in keys if key in arrays}


def _highest(y: npt.NDArray[Any], what: str) -> int:
    """The highest of some labels, once they are seen to be labels."""
    if y.dtype.kind not in "iu" or y.ndim != 1 or len(y) == 0:
        raise InputError(
            f"{what} is {y.dtype} {y.shape}; wanted whole numbers with shape [n], one class for each input."
        )
    if y.min() < 0 or y.max() >= MAX_CLASSES:
        raise InputError(f"{what} runs from {y.min()} to {y.max()}; wanted class numbers from 0, below {MAX_CLASSES}.")
    return int(y.max())


def _values(x: npt.NDArray[Any], what: str) -> Values:
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.floating):
        raise InputError(f"{what} is {x.dtype}; wanted uint8 (0 to 255) or floats in [0, 1].")
    low, high = float(x.min()), float(x.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InputError(f"{what} holds NaN or infinite values; wanted finite values in [0, 1].")
    if low < 0 or high > 1:
        hint = " 0..255 by mistake? Save it as uint8 or divide by 255." if low >= 0 and 1 < high <= 255 else ""
        raise InputError(f"{what} runs from {low:g} to {high:g}; wanted values in [0, 1].{hint}")
    return x.astype(np.float32)


def _layout(x: Values, what: str) -> Values:
    """Images as NCHW; what is no image is left alone."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        return x
    first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
    if first == last:
        why = "could be channels-first or channels-last" if first else "has neither 1 nor 3 channels"
        raise InputError(f"{what} has shape {x.shape}, which {why}; wanted [n, channels, height, width].")
    return x if first else x.transpose(0, 3, 1, 2)
