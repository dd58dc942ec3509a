"""A data set from image files, and back: a folder with one folder for each class.

`pets/cat/1.png`, `pets/dog/7.jpg` ... has no splits: both splits return all images, so a model trained on it must be
tested on another folder. `pets/train/cat/...` with `pets/test/cat/...` has two splits; the classes are those of both
together, so that a number means the same class in each.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap._files import atomic
from soap.data.dataset import SPLITS, Dataset, make_dataset
from soap.data.pictures import SUFFIXES, encode_png, is_picture, read_pixels
from soap.errors import InputError


def load_folder(path: Path, split: str) -> Dataset:
    """Images of one size with the folder's name as their class; classes are sorted by name.

    The files of all classes are shuffled, always in the same way, so that a limit or a holdout contains all classes.
    Grey if every image is grey, else RGB. `soap.data.pictures` describes how a file is decoded.
    """
    splits = _folders(path)
    divided = bool(splits) and {folder.name for folder in splits} <= set(SPLITS)
    if divided and not (path / split).is_dir():
        raise InputError(
            f"{path} contains {splits[0].name}/ only; expected {split}/ beside it for the split {split!r}."
        )
    every = [folder for part in splits for folder in _folders(part)] if divided else splits
    classes = sorted({folder.name for folder in every})
    chosen = _folders(path / split) if divided else splits
    files: list[Path] = []
    for folder in chosen:
        images = [file for file in _entries(folder) if is_picture(file)]
        if not images:
            hint = " Only train/ and test/ may be in a folder that has splits." if _folders(folder) else ""
            raise InputError(
                f"{folder} contains no image ({', '.join(SUFFIXES)}); add some or remove the folder.{hint}"
            )
        files += images
    if not files:
        example = path / "cat" / "1.png"
        raise InputError(f"{path} contains no class folders; expected one folder of images per class, e.g. {example}.")
    files.sort(key=_shuffled_order)
    labels = np.array([classes.index(file.parent.name) for file in files])
    return make_dataset(path.resolve().name, split, _read_all(files), labels, classes)


def save_folder(data: Dataset, path: str | Path) -> list[Path]:
    """Write the images as 8-bit PNG files in class folders: image 7 as `path/CLASS/7.png`; return the files.

    `load(path)` reads them again, shuffled. The folder must be new or empty.
    """
    folder = Path(path)
    if data.x.ndim != 4 or data.x.shape[1] not in (1, 3):
        raise InputError(f"{data.name} has inputs of shape {tuple(data.x.shape[1:])}; expected grey or RGB images.")
    atomic.check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose a new folder.")
    files = [folder / data.classes[label] / f"{number}.png" for number, label in enumerate(data.y.tolist())]
    for file, image in zip(files, data.x, strict=True):
        with atomic.replace_file(file) as temporary:
            temporary.write_bytes(encode_png(image))
    return files


def _shuffled_order(file: Path) -> bytes:
    """Sort key: a hash of class and file name."""
    return hashlib.sha256(f"{file.parent.name}/{file.name}".encode(errors="surrogateescape")).digest()


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _entries(path) if entry.is_dir()]


def _entries(path: Path) -> list[Path]:
    """The entries of a folder in sorted order, without hidden ones."""
    with atomic.file_errors(path):
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))


def _read_all(files: Sequence[Path]) -> npt.NDArray[np.uint8]:
    """Pixels [n, channels, height, width] of files that must have one size."""
    images: list[npt.NDArray[np.uint8]] = []
    for file in files:
        image = read_pixels(file)
        if images and image.shape[1:] != images[0].shape[1:]:
            (height, width), (first_height, first_width) = image.shape[1:], images[0].shape[1:]
            raise InputError(
                f"{file} is {width} x {height} and {files[0]} {first_width} x {first_height} (width x height); "
                "expected images of one size. Resize them first."
            )
        images.append(image)
    channels = max(len(image) for image in images)
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
