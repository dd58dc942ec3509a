"""`Dataset`: inputs as one tensor, their labels, and a fingerprint of both."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap import validate
from soap.errors import InputError, unknown
from soap.shapes import Float, Int, Tensor

SPLITS = ("train", "test")

Values = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
"""Inputs as read from a file: bytes, or float32 in [0, 1]."""

Array = Tensor | npt.NDArray[Any]
"""A tensor or a numpy array."""

FINGERPRINT_BLOCK = 256  # images converted at a time, to stay in the CPU cache


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Inputs in [0, 1] with one class number each; images are NCHW.

    `sha256` is the `fingerprint` of the content: it depends on pixels and labels, not on the file or the device.
    """

    name: str
    split: str
    x: Float[Tensor, "n *shape"] = field(repr=False)
    y: Int[Tensor, " n"] = field(repr=False)
    classes: tuple[str, ...]
    sha256: str

    def __post_init__(self) -> None:
        check_split(self.split)
        if self.x.dtype != torch.float32 or self.x.ndim < 2 or len(self.x) == 0:
            raise InputError(
                f"{self.name}: x is {self.x.dtype} {tuple(self.x.shape)}; "
                "expected float32 [n, ...] with at least one example."
            )
        if self.y.dtype != torch.int64 or self.y.shape != self.x.shape[:1]:
            raise InputError(
                f"{self.name}: y is {self.y.dtype} {tuple(self.y.shape)}; expected int64 [{len(self.x)}], "
                "one label for each example of x."
            )
        if self.y.device != self.x.device:
            raise InputError(f"{self.name}: x is on {self.x.device} and y on {self.y.device}; put both on one device.")
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= len(self.classes):
            raise InputError(
                f"{self.name}: labels run from {low} to {high}; expected 0 to {len(self.classes) - 1}, "
                f"one for each of the {len(self.classes)} classes.{validate.from_one(low, high, len(self.classes))}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def _repr_html_(self) -> str:
        """Facts and the first images, in notebooks."""
        from soap.data.html_view import html_table, image_strip

        facts = {"data": self.name, "split": self.split, "examples": f"{len(self):,}", "shape": [*self.x.shape[1:]]}
        facts |= {"classes": f"{len(self.classes)}: {', '.join(self.classes[:10])}", "sha256": self.sha256[:12]}
        return html_table([facts]) + image_strip(self.x)

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data on `device`."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def numbered_by(self, names: Sequence[str]) -> "Dataset":
        """The same data with the class numbers of a model whose classes are called `names`, matched by name.

        Data whose classes are called "0", "1", ..., or that has as many classes under other names, is returned
        unchanged: class numbers then already mean the same.
        """
        count = len(self.classes)
        if self.classes == tuple(names):
            return self
        if set(self.classes) <= set(names):
            numbers = torch.tensor([names.index(name) for name in self.classes], device=self.y.device)
            y = numbers[self.y]
            return replace(self, y=y, classes=tuple(names), sha256=fingerprint(self.x.cpu().numpy(), y.cpu().numpy()))
        if count == len(names) or (count < len(names) and self.classes == tuple(map(str, range(count)))):
            return self
        few = ", ".join(self.classes[:5]) + (" ..." if count > 5 else "")
        hint = validate.from_one(int(self.y.min()), count - 1, len(names))
        raise InputError(
            f"{self.name} has {count} classes ({few}), but the model's {len(names)} are {', '.join(names[:5])}"
            f"{' ...' if len(names) > 5 else ''}; rename the classes (the folders) to match.{hint}"
        )

    def take(self, n: int | None) -> "Dataset":
        """The first `n` examples (None: all), with their own fingerprint."""
        if n is None or n == len(self):
            return self
        if not 0 < n <= len(self):
            raise InputError(f"cannot take {n} examples of {self.name}/{self.split}; expected 1 to {len(self)}.")
        x, y = self.x[:n], self.y[:n]
        return replace(self, x=x, y=y, sha256=fingerprint(x.cpu().numpy(), y.cpu().numpy()))

    def inverted(self) -> "Dataset":
        """The same data with dark and light swapped, with its own fingerprint."""
        x = 1 - self.x
        return replace(self, x=x, sha256=fingerprint(x.cpu().numpy(), self.y.cpu().numpy()))


def make_dataset(
    name: str, split: str, values: Values, labels: npt.NDArray[np.integer], classes: Sequence[str]
) -> Dataset:
    """A `Dataset` from arrays: bytes are divided by 255, float32 in [0, 1] is kept."""
    x = torch.from_numpy(np.ascontiguousarray(values))
    if values.dtype == np.uint8:
        x = x.to(torch.float32).div_(255)
    y = torch.from_numpy(labels.astype(np.int64))
    return Dataset(name=name, split=split, x=x, y=y, classes=tuple(classes), sha256=fingerprint(values, labels))


def as_dataset(x: Array, y: Array, *, classes: int, name: str = "arrays", split: str = "train") -> Dataset:
    """Return inputs [n, ...] (bytes, or floats in [0, 1]) and class indices [n] as a `Dataset` on the CPU."""
    values, labels = _to_numpy(x), _to_numpy(y)
    if values.dtype != np.uint8:
        if not np.issubdtype(values.dtype, np.floating):
            raise InputError(f"inputs are {values.dtype}; expected bytes (uint8) or floats in [0, 1].")
        values = values.astype(np.float32)
        validate.inputs(torch.from_numpy(np.ascontiguousarray(values)))
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels are {labels.dtype}; expected integers: class indices from 0 to {classes - 1}.")
    return make_dataset(name, split, values, labels, [str(number) for number in range(classes)])


def _to_numpy(array: Array) -> npt.NDArray[Any]:
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)


def fingerprint(values: Values, labels: npt.NDArray[np.integer]) -> str:
    """SHA-256 of shape, values and labels.

    Floats that are all k/255 are hashed as the bytes k, so a file of bytes and a file of floats with the same images
    have the same fingerprint.
    """
    if values.dtype != np.uint8:
        as_bytes = _as_bytes(values)
        values = values.astype("<f4") if as_bytes is None else as_bytes
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode())
    digest.update(np.ascontiguousarray(values).data)
    digest.update(labels.astype("<i8").data)
    return digest.hexdigest()


def _as_bytes(values: Values) -> npt.NDArray[np.uint8] | None:
    """The bytes k with `values` = k/255, or None if a value has none."""
    as_bytes = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), FINGERPRINT_BLOCK):
        block = values[start : start + FINGERPRINT_BLOCK]
        part = as_bytes[start : start + FINGERPRINT_BLOCK]
        with np.errstate(invalid="ignore"):  # the comparison below rejects NaN
            part[:] = np.rint(block * np.float32(255))
        if not np.array_equal(part.astype(np.float32) / np.float32(255), block):
            return None
    return as_bytes


def check_split(split: str) -> None:
    """Raise unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
