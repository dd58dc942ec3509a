"""Readers of the files of MNIST (IDX format, plain or gzipped) and of the binary version of CIFAR-10 and CIFAR-100.

An IDX header is big-endian: two zero bytes, a type code (8 = unsigned byte, the only one read here), the number of
dimensions, then each dimension as a 32-bit integer. See http://yann.lecun.com/exdb/mnist/ ("file formats").

A CIFAR record is its label bytes (CIFAR-10: the class; CIFAR-100: the coarse class, then the fine one) and 3072 pixel
bytes: the 32 x 32 red values row by row, then green, then blue. See https://www.cs.toronto.edu/~kriz/cifar.html
"""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap._files import atomic
from soap.errors import FileError

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]
"""Images [n, channels, height, width] and labels [n]."""

IDX_UNSIGNED_BYTE = 8
MAX_IDX_BYTES = 2**30
READ_BYTES = 2**20

CIFAR_PIXEL_BYTES = 3 * 32 * 32
COARSE_CLASS_COUNT = 20

DIGITS = tuple("0123456789")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# fmt: off
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl",
    "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair",
    "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin",
    "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp",
    "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck",
    "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger",
    "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman",
    "worm",
)
# fmt: on


@contextmanager
def open_plain_or_gzip(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, decompressed if it is gzipped; errors of reading become `FileError`."""
    with atomic.file_errors(path), path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            yield gzip.GzipFile(fileobj=file, mode="rb") if gzipped else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path}: the gzip stream is damaged ({error}); get the file again.") from error


def read_mnist(paths: Sequence[Path]) -> Arrays:
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
        magic = file.read(4)
        expected = bytes((0, 0, IDX_UNSIGNED_BYTE, ndim))
        if magic != expected:
            raise FileError(
                f"{path}: begins with {magic.hex(' ') or 'nothing'}; expected {expected.hex(' ')} "
                f"(IDX, unsigned bytes, {ndim} dimension{'s' if ndim > 1 else ''})."
            )
        sizes = file.read(4 * ndim)
        if len(sizes) < 4 * ndim:
            raise FileError(f"{path}: ends inside its header; get the file again.")
        shape = struct.unpack(f">{ndim}I", sizes)
        announced = math.prod(shape)
        if not 0 < announced <= MAX_IDX_BYTES:
            raise FileError(
                f"{path}: its header announces {' x '.join(map(str, shape))} = {announced} bytes; "
                f"expected 1 to {MAX_IDX_BYTES}. The header is wrong; get the file again."
            )
        # In chunks, up to one byte more than announced: a header that announces too much allocates nothing, and one
        # that announces too little (or a gzip bomb) is noticed without unpacking the rest.
        content = bytearray()
        while len(content) <= announced and (chunk := file.read(min(READ_BYTES, announced + 1 - len(content)))):
            content += chunk
        if len(content) != announced:
            got = "more bytes" if len(content) > announced else f"{len(content)} bytes"
            raise FileError(
                f"{path}: has {got} after its header; expected exactly {announced} bytes "
                f"({' x '.join(map(str, shape))}). Get the file again."
            )
        return np.frombuffer(content, np.uint8).reshape(shape)


def read_cifar(paths: Sequence[Path], label_counts: Sequence[int]) -> Arrays:
    """Images [n, 3, 32, 32] and classes [n] (CIFAR-100: fine ones) of CIFAR files, in the order given."""
    records = np.concatenate([_cifar_records(path, label_counts) for path in paths])
    pixels = records[:, len(label_counts) :]
    return pixels.reshape(-1, 3, 32, 32), records[:, len(label_counts) - 1]


def _cifar_records(path: Path, label_counts: Sequence[int]) -> npt.NDArray[np.uint8]:
    length = len(label_counts) + CIFAR_PIXEL_BYTES
    with atomic.file_errors(path):
        content = np.fromfile(path, np.uint8)
    if len(content) == 0 or len(content) % length:
        raise FileError(
            f"{path}: has {len(content)} bytes; expected a whole number of records of {length} bytes. "
            "The file is incomplete or not the binary version; get it again."
        )
    records = content.reshape(-1, length)
    for position, count in enumerate(label_counts):
        wrong = records[:, position] >= count
        if wrong.any():
            first = int(np.argmax(wrong))
            raise FileError(
                f"{path}: record {first} has label {records[first, position]}; expected 0 to {count - 1}. "
                "The file is damaged or of another data set."
            )
    return records


read_cifar10 = partial(read_cifar, label_counts=(len(CIFAR10_CLASSES),))
read_cifar100 = partial(read_cifar, label_counts=(COARSE_CLASS_COUNT, len(CIFAR100_CLASSES)))
