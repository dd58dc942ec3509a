"""Rotation prediction and label consistency illustrated on one image (Figure 6)."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from soap.evaluation.gathered import Material
from soap.evaluation.views import TaskViews, file_name
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.report.paper_figures.thumbnails import blank, place, write

DATA = "cifar10"
SIDE, STEP, GAP = 1.3, 1.45, 0.6  # inches
UPPER, LOWER = 0.55, 2.65  # where the image and its copies stand
TURNS = ("0°", "90°", "180°", "270°")
VIEWS = ("random view", "flipped crop")


def draw(material: Material, palette: Palette) -> Figure:
    """Left: four turns and what is asked of each; right: two views that must agree."""
    shown = material.find(file_name(DATA), TaskViews)
    if shown is None:
        figure, (axes,) = panels.side_by_side(1, palette, width=8)
        panels.say(axes, palette, f"no views of an image of {DATA} yet")
        return figure
    turns, views = len(TURNS) * STEP, len(VIEWS) * STEP
    figure = blank(0.3 + turns + GAP + views, 5.1, palette)
    blocks = (
        (0.15, turns, "Rotation prediction", shown.turns, TURNS, "which turn? one of four for each copy"),
        (0.15 + turns + GAP, views, "Label consistency", shown.views, VIEWS, "the same answer to both"),
    )
    for left, width, title, copies, names, question in blocks:
        middle = left + (width - (STEP - SIDE)) / 2
        write(figure, middle, 0.35, title, palette, ha="center", fontweight="bold", fontsize=13)
        place(figure, middle - SIDE / 2, UPPER, SIDE, shown.image, palette)
        for k, name in enumerate(names):
            x = left + k * STEP
            _draw_arrow(figure, (middle, UPPER + SIDE + 0.06), (x + SIDE / 2, LOWER - 0.05), palette.ink)
            place(figure, x, LOWER, SIDE, copies[k], palette)
            write(figure, x + SIDE / 2, LOWER + SIDE + 0.25, name, palette, ha="center", fontsize=12)
        write(figure, middle, LOWER + SIDE + 0.68, question, palette, ha="center", fontsize=12, style="italic")
    source = f"the first {shown.label} of the test set, image {shown.place:,}; the noise of training is left out"
    write(figure, 0.15, 5.0, source, palette, fontsize=9)
    return figure


def _draw_arrow(figure: Figure, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    """An arrow between two places in inches from the upper left corner."""
    width, height = figure.get_size_inches()
    ends = [(x / width, 1 - y / height) for x, y in (start, end)]
    figure.add_artist(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.3))
