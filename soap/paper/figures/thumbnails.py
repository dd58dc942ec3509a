"""Small images on a page measured in inches from its upper left corner, with the network's answer below each."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from soap.report.drawing import Palette


def blank(width: float, height: float, palette: Palette) -> Figure:
    """A page of so many inches."""
    return Figure(figsize=(width, height), facecolor=palette.paper)


def write(figure: Figure, left: float, top: float, text: str, palette: Palette, **style: Any) -> None:
    """Letters whose baseline is `top` inches below the upper edge."""
    width, height = figure.get_size_inches()
    own: dict[str, Any] = {"color": palette.ink, "fontsize": 10, **style}
    figure.text(left / width, 1 - top / height, text, **own)


def place(
    figure: Figure,
    left: float,
    top: float,
    side: float,
    image: npt.NDArray[np.uint8],
    palette: Palette,
    *,
    answer: str | None = None,
    right: bool | None = None,
    letters: float = 8,
) -> None:
    """One image [height, width, channels].

    A right answer has a tick and a thin frame, a wrong one a cross and a thick frame.
    """
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
    grey = image.shape[-1] == 1
    axes.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=255, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    colour = palette.faint if right is None else palette.purified if right else palette.adversarial
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2.2 if right is False else 1.0)
    if answer is not None:
        axes.set_xlabel(f"{answer} {'✓' if right else '✗'}", fontsize=letters, color=colour, labelpad=2)
