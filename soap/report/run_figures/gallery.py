"""Images that broke a defence as small PNG files inside the page: clean, attacked, and the difference."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from soap.evaluation.summary import BrokenImage


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A broken image for the page: addresses of its three pictures, and what is said of it."""

    clean: str
    attacked: str
    difference: str
    row: int
    truth: str
    answered: str
    bare: str
    attempt: str
    largest: float


def gallery(found: Sequence[BrokenImage], classes: Sequence[str]) -> list[Shown]:
    """The pictures of all images that can be seen: [1 or 3, height, width]."""
    return [_shown(one, classes) for one in found if one.clean.ndim == 3 and one.clean.shape[0] in (1, 3)]


def _shown(one: BrokenImage, classes: Sequence[str]) -> Shown:
    delta = one.attacked - one.clean
    largest = float(np.abs(delta).max())
    return Shown(
        clean=_png(one.clean),
        attacked=_png(one.attacked),
        difference=_png(0.5 + delta / (2 * max(largest, 1e-12))),  # grey is no change
        row=one.row,
        truth=_named(one.y, classes),
        answered=_named(one.defended, classes),
        bare=_named(one.bare, classes),
        attempt=one.attempt,
        largest=largest,
    )


def _named(label: int, classes: Sequence[str]) -> str:
    return "" if label < 0 else classes[label] if label < len(classes) else str(label)


def _png(image: npt.NDArray[np.floating]) -> str:
    """The address of an <img>."""
    levels = (image.clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
