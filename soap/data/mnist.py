"""MNIST: the IDX file format, the reader of image and label files, and the bundled subset `mnist-mini`.

An IDX header is big-endian: two zero bytes, a type code (8 = unsigned byte, the only one read here), the number of
dimensions, then each dimension as a 32-bit integer. See http://yann.lecun.com/exdb/mnist/ ("file formats").

`mnist-mini` has 10,000 training and 2,000 test digits: the first 1,000 (200) of each class, in MNIST's order within a
class. Classes alternate (0, 1, ..., 9, 0, 1, ...), so that the first 10 n digits contain n of each class. Copyright and
licence of the digits: `mini/LICENSE.txt`. `tools/build_mnist_mini.py` rebuilds it.
"""

import gzip
import io
import math
import struct
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap.data.dataset import Dataset, make_dataset
from soap.data.gzip_files import open_plain_or_gzip
from soap.errors import FileError, InputError

DIGITS = tuple(str(digit) for digit in range(10))

IDX_UNSIGNED_BYTE = 8
MAX_IDX_BYTES = 2**30
READ_BYTES = 2**20

MINI_NAME = "mnist-mini"
MINI_COUNTS = {"train": 10_000, "test": 2_000}
MINI_FILES = {split: (f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz") for split in MINI_COUNTS}
MINI_SHA256 = {
    "train": "a51b5edda6263cfcd4d4b4600fa13dce0f070db1a950c559f62105bd381751a1",
    "test": "d76d28da9fd1ac1121d1f8aa18730d2a615280047fdcf0cb90fc59211af82edd",
}
"""The `Dataset.sha256` of each split."""


def read_mnist(paths: Sequence[Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images [n, 1, 28, 28] and labels [n] of a file of images and its file of labels."""
    images, labels = paths
    pixels, digits = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise FileError(f"{images}: the images are {pixels.shape[1]} x {pixels.shape[2]}; expected 28 x 28.")
    if len(pixels) != len(digits):
        raise FileError(
            f"{images} contains {len(pixels)} images and {labels} {len(digits)} labels; expected equal numbers. "
            "The files do not belong together; get both again."
        )
    if digits.max() >= len(DIGITS):
        first = int(np.argmax(digits >= len(DIGITS)))
        raise FileError(f"{labels}: label {first} is {digits[first]}; expected 0 to 9. The file is damaged.")
    return pixels[:, None], digits


def read_idx(path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """The array with `ndim` dimensions in an IDX file, plain or gzipped.

    The header is untrusted: memory grows with the content, and more than 1 GiB is refused.
    """
    with open_plain_or_gzip(path) as file:
        return _read_idx(file, str(path), ndim)


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write `array` as gzipped IDX; the same array gives the same bytes (no name and no time in the header)."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, IDX_UNSIGNED_BYTE, array.ndim, *array.shape)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(header + array.tobytes())


def _read_idx(file: io.BufferedIOBase, name: str, ndim: int) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    expected = bytes((0, 0, IDX_UNSIGNED_BYTE, ndim))
    if magic != expected:
        raise FileError(
            f"{name}: begins with {magic.hex(' ') or 'nothing'}; expected {expected.hex(' ')} "
            f"(IDX, unsigned bytes, {ndim} dimension{'s' if ndim > 1 else ''})."
        )
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise FileError(f"{name}: ends inside its header; get the file again.")
    shape = struct.unpack(f">{ndim}I", sizes)
    announced = math.prod(shape)
    if not 0 < announced <= MAX_IDX_BYTES:
        raise FileError(
            f"{name}: its header announces {' x '.join(map(str, shape))} = {announced} bytes; "
            f"expected 1 to {MAX_IDX_BYTES}. The header is wrong; get the file again."
        )
    # In chunks, up to one byte more than announced: a header that announces too much allocates nothing, and one that
    # announces too little (or a gzip bomb) is noticed without unpacking the rest.
    content = bytearray()
    while len(content) <= announced:
        chunk = file.read(min(READ_BYTES, announced + 1 - len(content)))
        if not chunk:
            break
        content += chunk
    if len(content) != announced:
        got = "more bytes" if len(content) > announced else f"{len(content)} bytes"
        raise FileError(
            f"{name}: has {got} after its header; expected exactly {announced} bytes "
            f"({' x '.join(map(str, shape))}). Get the file again."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def mini_folder() -> Path:
    """The folder of the bundled files."""
    return Path(str(files("soap.data") / "mini"))


def load_mini(split: str) -> Dataset:
    """The bundled digits of a split."""
    pixels, labels = read_mnist([mini_folder() / file for file in MINI_FILES[split]])
    digits = make_dataset(MINI_NAME, split, pixels, labels, DIGITS)
    if digits.sha256 != MINI_SHA256[split]:
        raise FileError(
            f"the bundled {MINI_NAME}/{split} has fingerprint {digits.sha256}; expected {MINI_SHA256[split]}. "
            "Install the package again."
        )
    return digits


def balanced_indices(labels: npt.NDArray[np.uint8], n: int) -> npt.NDArray[np.intp]:
    """Indices of the first n / 10 examples of each of the ten classes, with alternating classes."""
    per_class = n // len(DIGITS)
    indices = [np.flatnonzero(labels == digit)[:per_class] for digit in range(len(DIGITS))]
    if any(len(found) < per_class for found in indices):
        raise InputError(f"a class has fewer than {per_class} digits; expected the full MNIST.")
    return np.stack(indices, axis=1).reshape(-1)


def write_mini(mnist: dict[str, Dataset], target: Path) -> None:
    """Write the four files of `mnist-mini` into `target`, from the splits of the full MNIST."""
    for split, full in mnist.items():
        labels = full.y.numpy().astype(np.uint8)
        chosen = balanced_indices(labels, MINI_COUNTS[split])
        pixels = np.rint(full.x.numpy()[chosen, 0] * 255).astype(np.uint8)
        for file, array in zip(MINI_FILES[split], (pixels, labels[chosen]), strict=True):
            write_idx(target / file, array)
