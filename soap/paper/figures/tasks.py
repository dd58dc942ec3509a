"""Rotation prediction and label consistency on one image (Figure 6)."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from soap.paper.figure_data import FigureData
from soap.paper.task_views import TaskViews, file_name
from soap.report.drawing import Palette
from soap.report.panels import panel_row, show_message
from soap.report.thumbnails import add_image, add_text, empty_page

DATA = "cifar10"
SIDE, STEP, GAP = 1.3, 1.45, 0.6  # inches
UPPER, LOWER = 0.55, 2.65  # inches: y of the image and of its copies
TURNS = ("0°", "90°", "180°", "270°")
VIEWS = ("random view", "flipped crop")


def draw(data: FigureData, palette: Palette) -> Figure:
    """Left: four rotations, whose angle is predicted; right: two views, whose logits must agree."""
    shown = data.find(file_name(DATA), TaskViews)
    if shown is None:
        figure, (axes,) = panel_row(1, palette, width=8)
        show_message(axes, palette, f"no views of an image of {DATA} yet")
        return figure
    turns, views = len(TURNS) * STEP, len(VIEWS) * STEP
    figure = empty_page(0.3 + turns + GAP + views, 5.1, palette)
    blocks = (
        (0.15, turns, "Rotation prediction", shown.turns, TURNS, "which turn? one of four for each copy"),
        (0.15 + turns + GAP, views, "Label consistency", shown.views, VIEWS, "the same answer to both"),
    )
    for left, width, title, copies, names, question in blocks:
        middle = left + (width - (STEP - SIDE)) / 2
        add_text(figure, middle, 0.35, title, palette, ha="center", fontweight="bold", fontsize=13)
        add_image(figure, middle - SIDE / 2, UPPER, SIDE, shown.image, palette)
        for k, name in enumerate(names):
            x = left + k * STEP
            _draw_arrow(figure, (middle, UPPER + SIDE + 0.06), (x + SIDE / 2, LOWER - 0.05), palette.ink)
            add_image(figure, x, LOWER, SIDE, copies[k], palette)
            add_text(figure, x + SIDE / 2, LOWER + SIDE + 0.25, name, palette, ha="center", fontsize=12)
        add_text(figure, middle, LOWER + SIDE + 0.68, question, palette, ha="center", fontsize=12, style="italic")
    source = f"the first {shown.label} of the test set, image {shown.place:,}; the noise of training is left out"
    add_text(figure, 0.15, 5.0, source, palette, fontsize=9)
    return figure


def _draw_arrow(figure: Figure, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    """An arrow between two points in inches from the upper left corner."""
    width, height = figure.get_size_inches()
    ends = [(x / width, 1 - y / height) for x, y in (start, end)]
    figure.add_artist(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.3))
