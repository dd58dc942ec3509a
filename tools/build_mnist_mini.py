"""Rebuild the bundled mnist-mini from the full MNIST, byte for byte:

    python tools/build_mnist_mini.py DIR_WITH_MNIST [OUT]

DIR_WITH_MNIST is a data root, which contains `mnist/`; OUT is `soap/data/mini` by default. The bytes depend on the
version of zlib; the content, which the package checks, does not.

mnist-mini has the first 1,000 (200) training (test) digits of each class, in MNIST's order within a class. Classes
alternate (0, 1, ..., 9, 0, 1, ...), so that the first 10 n digits contain n of each class.
"""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np

from soap.data.loading import load
from soap.data.sources import MINI


def balanced_indices(labels: np.ndarray, n: int) -> np.ndarray:
    """Return the indices of the first n / 10 digits of each class, with alternating classes."""
    indices = [np.flatnonzero(labels == digit)[: n // 10] for digit in range(10)]
    if any(len(found) < n // 10 for found in indices):
        raise SystemExit(f"a class has fewer than {n // 10} digits; expected the full MNIST.")
    return np.stack(indices, axis=1).reshape(-1)


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write bytes as gzipped IDX, without a name and a time in the header, so equal arrays give equal files."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(header + array.tobytes())


def write_mini(root: Path, out: Path) -> None:
    """Write the four files of mnist-mini into `out`, from the full MNIST under the data root `root`."""
    for split, n in MINI.counts.items():
        full = load("mnist", split, root=root)
        labels = full.y.numpy().astype(np.uint8)
        chosen = balanced_indices(labels, n)
        pixels = np.rint(full.x.numpy()[chosen, 0] * 255).astype(np.uint8)
        for name, array in zip(MINI.names(split), (pixels, labels[chosen]), strict=True):
            write_idx(out / name, array)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = Path(sys.argv[2] if len(sys.argv) == 3 else MINI.folder)
    write_mini(Path(sys.argv[1]), out)
    for path in sorted(out.glob("*.gz")):
        print(path, path.stat().st_size, "bytes")
