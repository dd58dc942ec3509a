import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.data import Dataset
from soap.data.dataset import fingerprint, make_dataset
from soap.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 1, 4, 5), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])
CLASSES = ("ant", "bee", "cow")


def example() -> Dataset:
    return make_dataset("small", "test", PIXELS, LABELS, CLASSES)


def test_values_and_types() -> None:
    data = example()
    assert data.x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert len(data) == 6
    assert torch.equal(data.x, torch.tensor(PIXELS.astype(np.float32) / np.float32(255)))
    assert data.y.tolist() == LABELS.tolist()
    assert "tensor" not in repr(data)


def test_every_byte_survives() -> None:
    """All 256 bytes, as bytes or as floats of any precision divided by 255, are the same content."""
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    prints = {fingerprint(every, np.array([0]))}
    for kind in np.float32, np.float64:
        prints.add(fingerprint((every.astype(kind) / kind(255)).astype(np.float32), np.array([0])))
    prints.add(fingerprint(make_dataset("a", "test", every, np.array([0]), ["0"]).x.numpy(), np.array([0])))
    assert len(prints) == 1


def test_fingerprint_differs_for_other_content() -> None:
    other_pixel, other_label = PIXELS.copy(), LABELS.copy()
    other_pixel[5, 0, 3, 4] ^= 1
    other_label[5] = 0
    floats = PIXELS.astype(np.float32) / np.float32(255)
    off_grid = floats.copy()
    off_grid[0, 0, 0, 0] = np.nextafter(floats[0, 0, 0, 0], np.float32(0.5))
    prints = [
        fingerprint(PIXELS, LABELS),
        fingerprint(other_pixel, LABELS),
        fingerprint(PIXELS, other_label),
        fingerprint(PIXELS.reshape(6, 1, 5, 4), LABELS),
        fingerprint(off_grid, LABELS),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint(PIXELS, LABELS.astype(np.uint8)) == prints[0]
    assert fingerprint(PIXELS.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), LABELS) == prints[0]


def test_fingerprint_is_pinned() -> None:
    """Rows of results name data by it: it must not change between versions."""
    assert fingerprint(np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2), np.array([7])) == (
        "7542e839aadf11788f1f80d2538eb72812817c8b5376fa550b3602611dd0627d"
    )
    assert fingerprint(np.array([[0.1, 0.9]], np.float32), np.array([1])) == (
        "7c0b2f23a1aa6b34060d2f58e67d665fe5f2dfa1a8933ee2102f5cb77644bfad"
    )


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 6))
def test_take(n: int) -> None:
    data = example()
    few = data.take(n)
    assert torch.equal(few.x, data.x[:n])
    assert torch.equal(few.y, data.y[:n])
    assert few.sha256 == fingerprint(PIXELS[:n], LABELS[:n])
    assert few.classes == data.classes


def test_take_all_and_to() -> None:
    data = example()
    assert data.take(None) is data
    moved = data.to("cpu")
    assert torch.equal(moved.x, data.x)
    assert moved.sha256 == data.sha256


@pytest.mark.parametrize("n", [0, -1, 7])
def test_take_too_many(n: int) -> None:
    with pytest.raises(InputError, match=f"cannot take {n} examples of small/test; expected 1 to 6"):
        example().take(n)


BAD = {
    "split": ({"split": "validation"}, "unknown split 'validation'"),
    "bytes": ({"x": torch.zeros(6, 4, dtype=torch.uint8)}, "expected float32"),
    "no features": ({"x": torch.zeros(6)}, "expected float32"),
    "empty": ({"x": torch.zeros(0, 4), "y": torch.zeros(0, dtype=torch.int64)}, "at least one"),
    "lengths": ({"x": torch.zeros(5, 4)}, r"y is torch.int64 \(6,\); expected int64 \[5\]"),
    "float labels": ({"y": torch.zeros(6)}, "y is torch.float32"),
    "label too high": ({"y": torch.tensor([0, 1, 2, 3, 0, 0])}, "labels run from 0 to 3; expected 0 to 2"),
    "label negative": ({"y": torch.tensor([0, 1, 2, -1, 0, 0])}, "labels run from -1 to 2"),
    "devices": ({"y": torch.zeros(6, dtype=torch.int64, device="meta")}, "put both on one device"),
}


@pytest.mark.parametrize(("change", "says"), BAD.values(), ids=BAD.keys())
def test_bad_fields(unchecked_shapes: None, change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        dataclasses.replace(example(), **change)


def own(classes: tuple[str, ...]) -> Dataset:
    x = np.random.default_rng(0).random((6, 2), np.float32)
    return make_dataset("own", "test", x, np.arange(6) % len(classes), classes)


def test_class_numbers_are_matched_by_name() -> None:
    """Folders 3 and 7 alone were numbered 0 and 1, and a model of ten digits found none of them."""
    digits = [str(number) for number in range(10)]
    data = own(("3", "7")).numbered_by(digits)
    assert data.y.tolist() == [3, 7] * 3
    assert data.classes == tuple(digits)
    assert data.sha256 != own(("3", "7")).sha256
    assert own(("7", "x", "y")).numbered_by(["y", "7", "x"]).y.tolist() == [1, 2, 0] * 2
    for kept in (own(("0", "1", "2")), own(tuple("abcdef")[:3])):
        assert kept.numbered_by(["cat", "dog", "emu"]).y.tolist() == kept.y.tolist()
    assert own(("0", "1")).numbered_by(["cat", "dog", "emu"]).y.tolist() == [0, 1] * 3
    with pytest.raises(
        InputError, match=r"own has 2 classes \(cat, fox\), but the model's 3 are cat, dog, emu; rename"
    ):
        own(("cat", "fox")).numbered_by(["cat", "dog", "emu"])
