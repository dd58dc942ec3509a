"""The method as a diagram: joint training on the left, purification at test time on the right (Figure 1)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from soap.paper.figure_data import FigureData
from soap.report.drawing import FONT_SIZE, Palette

Point = tuple[float, float]
HALF_BOX = (1.15, 0.42)  # half width and height of a box, in units of the diagram
ABOVE, MIDDLE, BELOW = 2.75, 1.85, 0.95  # y of classifier, encoder and auxiliary head
START, ENCODER, HEADS, END = 1.0, 4.0, 7.7, 11.2  # x


def draw(data: FigureData, palette: Palette) -> Figure:
    """The diagram; it needs no data."""
    figure = Figure(figsize=(13, 3.9), facecolor=palette.paper)
    for k, (title, draw_half) in enumerate(
        (("(a) Joint training", _draw_training), ("(b) Purification at test time", _draw_purification))
    ):
        axes = figure.add_axes((0.01 + 0.5 * k, 0.02, 0.48, 0.9))
        axes.set(xlim=(0, 12.6), ylim=(-0.75, 3.5))
        axes.axis("off")
        axes.set_title(title, fontsize=FONT_SIZE + 2, fontweight="bold", color=palette.ink, loc="left")
        draw_half(axes, palette)
    return figure


def _draw_network(axes: Axes, palette: Palette, start: str, ends: tuple[str, str]) -> None:
    """The part of both halves: one encoder with the classifier and the auxiliary head."""
    half = HALF_BOX[0]
    _write(axes, (START, MIDDLE), start, palette.ink)
    _box(axes, (ENCODER, MIDDLE), "encoder $f$", palette.ink, palette)
    _arrow(axes, (START + 1.0, MIDDLE), (ENCODER - half, MIDDLE), palette.ink)
    branches = ((ABOVE, "classifier $g$", palette.clean), (BELOW, "auxiliary $h$", palette.purified))
    for (height, name, colour), end in zip(branches, ends, strict=True):
        _box(axes, (HEADS, height), name, colour, palette)
        _arrow(axes, (ENCODER + half, MIDDLE), (HEADS - half, height), palette.ink)
        _arrow(axes, (HEADS + half, height), (END - 1.35, height), colour)
        _write(axes, (END, height), end, colour)
    _write(axes, (ENCODER + half + 0.55, MIDDLE), "$z$", palette.ink)


def _draw_training(axes: Axes, palette: Palette) -> None:
    _draw_network(axes, palette, "training\nimage $x$", ("$L_{cls}$,\nby the label", "$L_{aux}$,\nwithout label"))
    _write(axes, (6.3, -0.45), "the weights learn:  minimise  $L_{cls} + \\alpha\\, L_{aux}$", palette.ink)


def _draw_purification(axes: Axes, palette: Palette) -> None:
    _draw_network(axes, palette, "attacked\nimage $x_{adv}$", ("answer, after\n$T$ steps", "$L_{aux}$"))
    # The path of the gradient back to the pixels.
    low = 0.1
    axes.plot([END, END, START], [BELOW - 0.35, low, low], color=palette.adversarial, linewidth=1.8)
    _arrow(axes, (START, low), (START, MIDDLE - 0.5), palette.adversarial)
    step = "$x \\leftarrow x - \\gamma\\,\\mathrm{sign}(\\nabla_x L_{aux})$"
    words = f"the image moves:  {step},  within $\\epsilon_{{pfy}}$ and [0, 1]"
    _write(axes, (6.3, -0.45), words, palette.ink)


def _box(axes: Axes, centre: Point, text: str, colour: str, palette: Palette) -> None:
    (x, y), (w, h) = centre, HALF_BOX
    shape = FancyBboxPatch(
        (x - w, y - h), 2 * w, 2 * h, boxstyle="round,pad=0,rounding_size=0.15", facecolor=palette.paper,
        edgecolor=colour, linewidth=2,
    )  # fmt: skip
    axes.add_patch(shape)
    _write(axes, centre, text, colour)


def _write(axes: Axes, centre: Point, text: str, colour: str) -> None:
    axes.text(*centre, text, ha="center", va="center", fontsize=FONT_SIZE + 1, color=colour)


def _arrow(axes: Axes, start: Point, end: Point, colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=16, color=colour, linewidth=1.8, shrinkA=0, shrinkB=0
        )
    )
