"""Reader of the binary version of CIFAR-10 and CIFAR-100: fixed-length records, no pickle.

A record is its label bytes (CIFAR-10: the class; CIFAR-100: the coarse class, then the fine one) and 3072 pixel
bytes: the 32 x 32 red values row by row, then green, then blue. See https://www.cs.toronto.edu/~kriz/cifar.html
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap.errors import FileError

PIXEL_BYTES = 3 * 32 * 32

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

COARSE_CLASS_COUNT = 20


def read_cifar10(paths: Sequence[Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images [n, 3, 32, 32] and classes [n] of CIFAR-10 files, in the order given."""
    return _read(paths, (len(CIFAR10_CLASSES),))


def read_cifar100(paths: Sequence[Path]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images [n, 3, 32, 32] and fine classes [n] of CIFAR-100 files, in the order given."""
    return _read(paths, (COARSE_CLASS_COUNT, len(CIFAR100_CLASSES)))


def _read(paths: Sequence[Path], label_counts: Sequence[int]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    records = np.concatenate([_records(path, label_counts) for path in paths])
    pixels = records[:, len(label_counts) :]
    return pixels.reshape(-1, 3, 32, 32), records[:, len(label_counts) - 1]


def _records(path: Path, label_counts: Sequence[int]) -> npt.NDArray[np.uint8]:
    length = len(label_counts) + PIXEL_BYTES
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error
    if len(content) == 0 or len(content) % length:
        raise FileError(
            f"{path}: has {len(content)} bytes; expected a whole number of records of {length} bytes. "
            "The file is incomplete or not the binary version; get it again."
        )
    records = content.reshape(-1, length)
    for position, count in enumerate(label_counts):
        highest = int(records[:, position].max())
        if highest >= count:
            first = int(np.argmax(records[:, position] >= count))
            raise FileError(
                f"{path}: record {first} has label {records[first, position]}; expected 0 to {count - 1}. "
                "The file is damaged or of another data set."
            )
    return records
