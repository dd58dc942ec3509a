"""Images that broke a defence, embedded in the page as PNG: clean, attacked, and the difference."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from soap.evaluation.summary import BrokenImage


@dataclass(frozen=True, kw_only=True)
class GalleryImage:
    """A broken image: src of its three pictures, labels, attempt, and the largest change of a value."""

    clean: str
    attacked: str
    difference: str
    row: int
    truth: str
    predicted: str
    bare: str
    attempt: str
    largest: float


def gallery(found: Sequence[BrokenImage], classes: Sequence[str]) -> list[GalleryImage]:
    """Gallery entries of all inputs that are images: [1 or 3, height, width]."""
    return [_gallery_image(one, classes) for one in found if one.clean.ndim == 3 and one.clean.shape[0] in (1, 3)]


def _gallery_image(one: BrokenImage, classes: Sequence[str]) -> GalleryImage:
    delta = one.attacked - one.clean
    largest = float(np.abs(delta).max())
    return GalleryImage(
        clean=_png(one.clean),
        attacked=_png(one.attacked),
        difference=_png(0.5 + delta / (2 * max(largest, 1e-12))),  # grey is no change
        row=one.row,
        truth=_class_name(one.y, classes),
        predicted=_class_name(one.defended, classes),
        bare=_class_name(one.bare, classes),
        attempt=one.attempt,
        largest=largest,
    )


def _class_name(label: int, classes: Sequence[str]) -> str:
    return "" if label < 0 else classes[label] if label < len(classes) else str(label)


def _png(image: npt.NDArray[np.floating]) -> str:
    """The image as src of an <img>."""
    levels = (image.clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
