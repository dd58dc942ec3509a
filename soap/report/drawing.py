"""Colours for light and dark pages, panels, small images, and figures as PNG and SVG. Never uses pyplot."""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap._files import atomic


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours that differ in lightness as well as hue, so that they stay distinct with any colour blindness.

    After Okabe and Ito, darkened or lightened to a text contrast of 4.5 on `paper`.
    """

    paper: str
    ink: str
    faint: str
    clean: str
    adversarial: str
    purified: str


LIGHT = Palette(
    paper="#ffffff", ink="#1c2127", faint="#d5dae0", clean="#0067a3", adversarial="#b84a00", purified="#007355"
)
DARK = Palette(
    paper="#15191e", ink="#e6e9ed", faint="#3a424b", clean="#6bbcf0", adversarial="#ff9d57", purified="#3fcb9c"
)


def show_zero(axes: Axes) -> None:
    """Extend the y axis to zero after everything is drawn; an axis without zero exaggerates differences."""
    axes.set_ylim(bottom=0 if axes.dataLim.y0 >= 0 else None, top=0 if axes.dataLim.y1 < 0 else None)


def save_figure(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write `out`/NAME.png and `out`/NAME.svg; the same figure gives the same bytes."""
    paths = []
    for kind, content in {"png": png(figure), "svg": svg(figure)}.items():
        paths.append(out / f"{name}.{kind}")
        with atomic.replace_file(paths[-1]) as temporary:
            temporary.write_bytes(content)
    return paths


def png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file with text as outlines and no external parts."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "soap"}):  # without a salt ids are random and files differ
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _smaller(buffer.getvalue().decode()).encode()


def _smaller(text: str) -> str:
    """The same SVG without comments and white space, coordinates rounded to a hundredth of a point."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' d="[^"]*"', lambda path: " " + re.sub(r"\s*([MLQCz])\s*", r"\1", _rounded(path[0][1:])), text)
    text = text.replace("DejaVuSans-", "D")  # glyph names are repeated at every use
    return re.sub(r">\s+<", "><", re.sub(r"[ \t\n]+", " ", text)) + "\n"


def _rounded(numbers: str) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", numbers)


FONT_SIZE = 11  # points
PAGE_FONT_SIZE = 12  # points, for figures of a page


def panel_row(
    count: int, *, width: float = 3.5, height: float = 3.2, rows: int = 1, tick_size: float = FONT_SIZE - 1
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in one row (or several), `width` x `height` inches each."""
    columns = -(-count // rows)
    figure = Figure(figsize=(width * columns, height * rows), facecolor=LIGHT.paper, layout="constrained")
    panels = [figure.add_subplot(rows, columns, k + 1, facecolor=LIGHT.paper) for k in range(count)]
    for axes in panels:
        axes.tick_params(labelsize=tick_size, colors=LIGHT.ink)
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color(LIGHT.ink)
    return figure, panels


def page_axes(width: float, height: float, x_label: str, y_label: str = "") -> tuple[Figure, Axes]:
    """A figure with one panel in the font size of pages."""
    figure, (axes,) = panel_row(1, width=width, height=height, tick_size=PAGE_FONT_SIZE)
    axes.set_xlabel(x_label, fontsize=PAGE_FONT_SIZE, color=LIGHT.ink)
    axes.set_ylabel(y_label, fontsize=PAGE_FONT_SIZE, color=LIGHT.ink)
    return figure, axes


def set_titles(axes: Axes, title: str, x_label: str = "", y_label: str = "", note: str = "") -> None:
    """Title and axis labels of a panel; the note is in small letters at the end of the title's line."""
    axes.set_title(title, fontsize=FONT_SIZE + 1, color=LIGHT.ink, fontweight="bold", loc="left")
    axes.set_title(note, fontsize=FONT_SIZE - 3, color=LIGHT.ink, loc="right")
    axes.set_xlabel(x_label, fontsize=FONT_SIZE, color=LIGHT.ink)
    axes.set_ylabel(y_label, fontsize=FONT_SIZE, color=LIGHT.ink)


def show_message(axes: Axes, title: str, words: str) -> None:
    """The title, and a message in the middle, of a panel without data."""
    set_titles(axes, title)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=LIGHT.faint, linestyle=(0, (3, 3)))
    axes.text(
        0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=FONT_SIZE, color=LIGHT.ink,
        style="italic",
    )  # fmt: skip


def add_legend(axes: Axes, **place: Any) -> None:
    """The panel's legend on a slightly transparent background."""
    look: dict[str, Any] = {"facecolor": LIGHT.paper, "edgecolor": "none", "framealpha": 0.85}
    axes.legend(fontsize=FONT_SIZE - 2, labelcolor=LIGHT.ink, **look, **place)


def empty_page(width: float, height: float) -> Figure:
    """A figure without axes; width and height in inches."""
    return Figure(figsize=(width, height), facecolor=LIGHT.paper)


def add_text(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Text with its baseline `top` inches below the upper edge."""
    width, height = figure.get_size_inches()
    own: dict[str, Any] = {"color": LIGHT.ink, "fontsize": 10, **style}
    figure.text(left / width, 1 - top / height, text, **own)


def add_image(
    figure: Figure,
    left: float,
    top: float,
    side: float,
    image: npt.NDArray[np.generic],
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
    colour = LIGHT.faint if correct is None else LIGHT.purified if correct else LIGHT.adversarial
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=line_widths[1] if correct is False else line_widths[0])
    if prediction is not None:
        axes.set_xlabel(f"{prediction} {'✓' if correct else '✗'}", fontsize=font_size, color=colour, labelpad=label_pad)


def radius_axis(attack: float) -> tuple[int, str]:
    """Scale and title of an axis of purification radii; as in the paper, small ones are in 255ths."""
    scale, unit = (1, "") if attack > 0.1 else (255, ", in 255ths")
    return scale, f"purification radius $\\epsilon_{{pfy}}${unit}"


def mark_attack(axes: Axes, radius: float) -> None:
    """Dotted line at the attack's radius."""
    label = f"attack's radius, {radius:.3g}"
    axes.axvline(radius, color=LIGHT.ink, linestyle=(0, (1, 2)), linewidth=1.4, label=label)


def mark_elbow(axes: Axes, radius: float, loss: float) -> None:
    """Triangle at the elbow of a curve of losses."""
    axes.plot(
        [radius], [loss], marker="^", markersize=10, linestyle="none", markerfacecolor=LIGHT.paper,
        markeredgecolor=LIGHT.ink, markeredgewidth=1.6, label=f"elbow, {radius:.3g}",
    )  # fmt: skip


def draw_loss_levels(axes: Axes, adversarial: float, clean: float) -> None:
    """Horizontal lines at the mean loss of adversarial and of clean images."""
    levels = (
        ("adversarial", adversarial, LIGHT.adversarial, (0, (6, 2))),
        ("clean", clean, LIGHT.clean, (0, (4, 1, 1, 1))),
    )
    for label, level, colour, dashes in levels:
        axes.axhline(level, color=colour, linestyle=dashes, linewidth=1.8, label=label)
