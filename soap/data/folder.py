"""The user's own images: a folder with one folder for each class.

`pets/cat/1.png`, `pets/dog/7.jpg` ... is one set, and is served whole whichever split is asked for: whoever trains
on it must test on another. `pets/train/cat/...` with `pets/test/cat/...` is two splits; the classes are
those of both together, so that a number means the same class in each.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap.data.dataset import SPLITS, Dataset, dataset
from soap.data.image_file import opened
from soap.errors import FileError, InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
GREY_MODES = ("1", "L", "LA")
COLOUR_MODES = ("P", "RGB", "RGBA", "CMYK", "YCbCr")


def load_folder(path: Path, split: str) -> Dataset:
    """Images of one size; the class is the folder's name, classes in sorted order.

    Files of all classes are mixed, the same way every time, so that the first or the last of them are no class alone.
    Grey if every image is grey, else RGB; transparency is dropped.
    """
    splits = _folders(path)
    divided = bool(splits) and {folder.name for folder in splits} <= set(SPLITS)
    if divided and not (path / split).is_dir():
        raise InputError(f"{path} holds {splits[0].name}/ only; wanted {split}/ beside it for the split {split!r}.")
    every = [folder for part in splits for folder in _folders(part)] if divided else splits
    classes = sorted({folder.name for folder in every})
    chosen = _folders(path / split) if divided else splits
    files: list[Path] = []
    for folder in chosen:
        images = [file for file in _listed(folder) if file.suffix.lower() in SUFFIXES and file.is_file()]
        if not images:
            hint = " Beside train/ and test/ there may be nothing else." if _folders(folder) else ""
            raise InputError(f"{folder} holds no image ({', '.join(SUFFIXES)}); wanted some, or no such folder.{hint}")
        files += images
    if not files:
        raise InputError(
            f"{path} holds no class folders; wanted one folder of images for each class, e.g. {path / 'cat' / '1.png'}."
        )
    files.sort(key=_place)
    labels = np.array([classes.index(file.parent.name) for file in files])
    return dataset(path.resolve().name, split, _read(files), labels, classes)


def _place(file: Path) -> bytes:
    """Where a file comes: by chance, and always the same."""
    return hashlib.sha256(f"{file.parent.name}/{file.name}".encode(errors="surrogateescape")).digest()


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _listed(path) if entry.is_dir()]


def _listed(path: Path) -> list[Path]:
    """What is in a folder, in sorted order, without hidden entries."""
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as problem:
        raise FileError(f"cannot look into {path}: {problem.strerror or problem}.") from problem


def _read(files: Sequence[Path]) -> npt.NDArray[np.uint8]:
    """Pixels [n, channels, height, width] of files that must share one size."""
    sizes, modes = zip(*(_header(file) for file in files), strict=True)
    for file, size in zip(files, sizes, strict=True):
        if size != sizes[0]:
            raise InputError(
                f"{file} is {size[0]} x {size[1]} and {files[0]} {sizes[0][0]} x {sizes[0][1]} (width x height); "
                "wanted images of one size. Resize them first."
            )
    mode = "L" if all(mode in GREY_MODES for mode in modes) else "RGB"
    images = (_pixels(file, mode) for file in files)
    first = next(images)  # before memory is taken for all: sizes are only what headers say until one is read
    pixels = np.empty((len(files), *first.shape), np.uint8)
    pixels[0] = first
    for place, image in enumerate(images, 1):
        pixels[place] = image
    return pixels


def _header(file: Path) -> tuple[tuple[int, int], str]:
    """Size (width, height) and colour mode; the pixels are not read yet."""
    with _decoding(file), opened(file.read_bytes()) as image:
        size, mode = image.size, image.mode
    if mode not in GREY_MODES + COLOUR_MODES:
        raise InputError(f"{file} has colour mode {mode}; wanted 8 bits a channel, grey or RGB. Save it so.")
    return size, mode


def _pixels(file: Path, mode: str) -> npt.NDArray[np.uint8]:
    """Pixels [channels, height, width]."""
    with _decoding(file), opened(file.read_bytes()) as image:
        levels = np.asarray(image.convert(mode))
    return np.atleast_3d(levels).transpose(2, 0, 1)


@contextmanager
def _decoding(file: Path) -> Iterator[None]:
    try:
        yield
    except InputError as problem:
        raise InputError(f"{file}: {problem}") from problem
    except ImportError as problem:
        raise InputError("reading image files needs Pillow; install it with `pip install pillow`.") from problem
    # Pillow's decoders meet a damaged file with many kinds of exception (OSError, SyntaxError, struct.error ...).
    except Exception as problem:
        raise FileError(f"{file}: cannot be read as an image ({problem}); mend or remove it.") from problem
