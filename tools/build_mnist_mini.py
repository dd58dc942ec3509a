"""Rebuild the bundled mnist-mini from the full MNIST; the same files come out byte for byte.

    python tools/build_mnist_mini.py DIR_WITH_MNIST [OUT]

DIR_WITH_MNIST is a data root (it holds `mnist/`); OUT is the package's own `soap/data/mini` unless given.
"Byte for byte" holds for one version of zlib; the content, which the package checks, is the same under any.
"""

import sys
from pathlib import Path

from soap.data.loading import load
from soap.data.mnist import mini_folder, write_mini

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    mnist = {split: load("mnist", split, root=Path(sys.argv[1])) for split in ("train", "test")}
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else mini_folder()
    write_mini(mnist, out)
    for path in sorted(out.glob("*.gz")):
        print(path, path.stat().st_size, "bytes")
