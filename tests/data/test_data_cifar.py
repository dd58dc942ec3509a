from pathlib import Path

import numpy as np
import pytest

from soap.data.binary_files import CIFAR10_CLASSES, CIFAR100_CLASSES, read_cifar10, read_cifar100
from soap.errors import FileError


def record(*labels: int, red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    return bytes(labels) + bytes([red] * 1024) + bytes([green] * 1024) + bytes([blue] * 1024)


def test_cifar10_layout(tmp_path: Path) -> None:
    """Red plane first, rows before columns, files in the order given."""
    gradient = bytearray(record(9, green=2, blue=3))
    gradient[1:1025] = bytes(k % 256 for k in range(1024))
    (tmp_path / "a").write_bytes(record(3, red=1, green=2, blue=3))
    (tmp_path / "b").write_bytes(bytes(gradient))
    pixels, labels = read_cifar10([tmp_path / "b", tmp_path / "a"])
    assert pixels.shape == (2, 3, 32, 32)
    assert pixels.dtype == np.uint8
    assert labels.tolist() == [9, 3]
    assert pixels[0, 0, 1].tolist() == list(range(32, 64))
    assert [pixels[1, channel].mean() for channel in range(3)] == [1, 2, 3]


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(record(19, 99) + record(4, 0, blue=7))
    pixels, labels = read_cifar100([tmp_path / "train.bin"])
    assert labels.tolist() == [99, 0]
    assert pixels[1, 2].min() == 7
    assert pixels[0].max() == 0


def test_class_names() -> None:
    assert len(set(CIFAR10_CLASSES)) == 10
    assert len(set(CIFAR100_CLASSES)) == 100
    # Both sets number their classes in alphabetical order.
    assert sorted(CIFAR10_CLASSES) == list(CIFAR10_CLASSES)
    assert sorted(CIFAR100_CLASSES) == list(CIFAR100_CLASSES)


BAD = {
    "empty": (read_cifar10, b"", "has 0 bytes; expected a whole number of records of 3073"),
    "cut": (read_cifar10, record(1)[:-1], "has 3072 bytes"),
    "one byte more": (read_cifar10, record(1) + b"\0", "has 3074 bytes"),
    "cifar100 as cifar10": (read_cifar10, record(1, 1), "has 3074 bytes"),
    "cifar10 as cifar100": (read_cifar100, record(1), "expected a whole number of records of 3074"),
    "label 10": (read_cifar10, record(9) + record(10), "record 1 has label 10; expected 0 to 9"),
    "coarse 20": (read_cifar100, record(20, 0), "record 0 has label 20; expected 0 to 19"),
    "fine 100": (read_cifar100, record(0, 100), "record 0 has label 100; expected 0 to 99"),
}


@pytest.mark.parametrize(("read", "content", "says"), BAD.values(), ids=BAD.keys())
def test_bad_files(tmp_path: Path, read, content: bytes, says: str) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(content)
    with pytest.raises(FileError, match=says) as caught:
        read([path])
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read_cifar10([tmp_path / "absent.bin"])
