"""Axes as all figures of a run's page have them."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.report.drawing import Palette

LETTERS = 12  # points


def plain_axes(palette: Palette, width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes, in the palette's colours."""
    figure = Figure(figsize=(width, height), facecolor=palette.paper, layout="constrained")
    axes = figure.add_subplot(facecolor=palette.paper)
    axes.tick_params(labelsize=LETTERS, colors=palette.ink)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(palette.ink)
    return figure, axes
