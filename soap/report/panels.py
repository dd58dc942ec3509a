"""Panels of a figure: axes, titles, legends, and a message for a panel without data."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.report.drawing import Palette
from soap.results import Row

FONT_SIZE = 11  # points
PAGE_FONT_SIZE = 12  # points, for figures of a page


def panel_row(
    count: int,
    palette: Palette,
    *,
    width: float = 3.5,
    height: float = 3.2,
    rows: int = 1,
    tick_size: float = FONT_SIZE - 1,
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in one row (or several), `width` x `height` inches each."""
    columns = -(-count // rows)
    figure = Figure(figsize=(width * columns, height * rows), facecolor=palette.paper, layout="constrained")
    panels = [figure.add_subplot(rows, columns, k + 1, facecolor=palette.paper) for k in range(count)]
    for axes in panels:
        axes.tick_params(labelsize=tick_size, colors=palette.ink)
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color(palette.ink)
    return figure, panels


def page_axes(palette: Palette, width: float, height: float, x_label: str, y_label: str = "") -> tuple[Figure, Axes]:
    """A figure with one panel in the font size of pages."""
    figure, (axes,) = panel_row(1, palette, width=width, height=height, tick_size=PAGE_FONT_SIZE)
    axes.set_xlabel(x_label, fontsize=PAGE_FONT_SIZE, color=palette.ink)
    axes.set_ylabel(y_label, fontsize=PAGE_FONT_SIZE, color=palette.ink)
    return figure, axes


def set_titles(axes: Axes, palette: Palette, title: str, x_label: str = "", y_label: str = "", note: str = "") -> None:
    """Title and axis labels of a panel; the note is in small letters at the end of the title's line."""
    axes.set_title(title, fontsize=FONT_SIZE + 1, color=palette.ink, fontweight="bold", loc="left")
    axes.set_title(note, fontsize=FONT_SIZE - 3, color=palette.ink, loc="right")
    axes.set_xlabel(x_label, fontsize=FONT_SIZE, color=palette.ink)
    axes.set_ylabel(y_label, fontsize=FONT_SIZE, color=palette.ink)


def show_message(axes: Axes, palette: Palette, words: str) -> None:
    """A message in the middle of a panel without data."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=palette.faint, linestyle=(0, (3, 3)))
    axes.text(
        0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=FONT_SIZE, color=palette.ink,
        style="italic",
    )  # fmt: skip


def add_legend(axes: Axes, palette: Palette, **place: Any) -> None:
    """The panel's legend on a slightly transparent background."""
    look: dict[str, Any] = {"facecolor": palette.paper, "edgecolor": "none", "framealpha": 0.85}
    axes.legend(fontsize=FONT_SIZE - 2, labelcolor=palette.ink, **look, **place)


def accuracies(rows: Sequence[Row]) -> tuple[list[float], list[list[float]]]:
    """Accuracies in per cent, and the lengths of their 95 % intervals below and above."""
    values = [100 * row.accuracy for row in rows]
    ends = [[abs(100 * row.interval[k] - value) for row, value in zip(rows, values, strict=True)] for k in (0, 1)]
    return values, ends
