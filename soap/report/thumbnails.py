"""Small images on a page, positioned in inches from the upper left corner, with the prediction below each."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from soap.report.drawing import Palette


def empty_page(width: float, height: float, palette: Palette) -> Figure:
    """A figure without axes; width and height in inches."""
    return Figure(figsize=(width, height), facecolor=palette.paper)


def add_text(figure: Figure, left: float, top: float, text: str, palette: Palette, **style: Any) -> None:
    """Text with its baseline `top` inches below the upper edge."""
    width, height = figure.get_size_inches()
    own: dict[str, Any] = {"color": palette.ink, "fontsize": 10, **style}
    figure.text(left / width, 1 - top / height, text, **own)


def add_image(
    figure: Figure,
    left: float,
    top: float,
    side: float,
    image: npt.NDArray[np.generic],
    palette: Palette,
    *,
    prediction: str | None = None,
    correct: bool | None = None,
    font_size: float = 8,
    label_pad: float = 2,
    line_widths: tuple[float, float] = (1.0, 2.2),
) -> None:
    """One image [height, width, channels], uint8 or float in [0, 1].

    A correct prediction has a tick and a thin frame, a wrong one a cross and a thick frame (`line_widths`).
    """
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
    largest = 255 if image.dtype == np.uint8 else 1
    gray = image.shape[-1] == 1
    axes.imshow(image[..., 0] if gray else image, cmap="gray", vmin=0, vmax=largest, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    colour = palette.faint if correct is None else palette.purified if correct else palette.adversarial
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=line_widths[1] if correct is False else line_widths[0])
    if prediction is not None:
        axes.set_xlabel(f"{prediction} {'✓' if correct else '✗'}", fontsize=font_size, color=colour, labelpad=label_pad)
