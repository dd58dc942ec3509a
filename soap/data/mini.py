"""`mnist-mini`, bundled with the package: 10,000 training and 2,000 test digits of MNIST, class-balanced.

The first 1,000 (200) digits of each class, in MNIST's order within a class; classes take turns
(0, 1, ..., 9, 0, 1, ...), so that the first 10 n digits hold n of each class. Copyright and licence of the digits:
`mini/LICENSE.txt`. Rebuilt by `tools/build_mnist_mini.py`.
"""

from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from soap.data.dataset import Dataset, dataset
from soap.data.idx import write_idx
from soap.data.mnist import DIGITS, read_mnist
from soap.errors import FileError, InputError

NAME = "mnist-mini"
COUNTS = {"train": 10_000, "test": 2_000}
FILES = {split: (f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz") for split in COUNTS}
# Fingerprints of the content (see `Dataset.sha256`).
CONTENT = {
    "train": "a51b5edda6263cfcd4d4b4600fa13dce0f070db1a950c559f62105bd381751a1",
    "test": "d76d28da9fd1ac1121d1f8aa18730d2a615280047fdcf0cb90fc59211af82edd",
}


def folder() -> Path:
    """Where the bundled files are."""
    return Path(str(files("soap.data") / "mini"))


def load_mini(split: str) -> Dataset:
    """The bundled digits of a split."""
    pixels, labels = read_mnist([folder() / file for file in FILES[split]])
    digits = dataset(NAME, split, pixels, labels, DIGITS)
    if digits.sha256 != CONTENT[split]:
        raise FileError(
            f"the bundled {NAME}/{split} has fingerprint {digits.sha256}; wanted {CONTENT[split]}. "
            "Install the package again."
        )
    return digits


def balanced(labels: npt.NDArray[np.uint8], n: int) -> npt.NDArray[np.intp]:
    """Where the first n / 10 examples of each of the ten classes are, the classes taking turns."""
    each = n // len(DIGITS)
    places = [np.flatnonzero(labels == digit)[:each] for digit in range(len(DIGITS))]
    if any(len(place) < each for place in places):
        raise InputError(f"a class has fewer than {each} digits; the full MNIST is wanted.")
    return np.stack(places, axis=1).reshape(-1)


def write_mini(mnist: dict[str, Dataset], target: Path) -> None:
    """Write the four files of `mnist-mini` into `target`, from the splits of the full MNIST."""
    for split, full in mnist.items():
        labels = full.y.numpy().astype(np.uint8)
        chosen = balanced(labels, COUNTS[split])
        pixels = np.rint(full.x.numpy()[chosen, 0] * 255).astype(np.uint8)
        for file, array in zip(FILES[split], (pixels, labels[chosen]), strict=True):
            write_idx(target / file, array)
