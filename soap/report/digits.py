"""Clean, adversarial and purified inputs, and what the decoder sees for each (the paper's Figure 2)."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.showcase import STAGES, Showcase
from soap.report.drawing import Palette
from soap.shapes import Float, Tensor

BLOCKS = {"inputs": "what the network is shown", "decoded": "what its decoder makes of it"}
SIDE, STEP, MARGIN, GAP = 0.5, 0.57, 0.03, 0.45  # inches: a panel, from panel to panel, at the edges, between blocks
HEAD, TITLE, ANSWER = 0.34, 0.34, 0.35  # inches: above a block, above a row of panels, below it
LETTERS = 14  # points


def draw_digits(
    show: Showcase, palette: Palette, *, attack: str = "adversarial", blocks: Sequence[str] = tuple(BLOCKS)
) -> Figure:
    """Three rows of panels a block, a column a class, and under each input the class the network answers.

    A right answer has a tick, a wrong one a cross, in different colours. attack: the title of the second row.
    """
    columns = len(show.y)
    block = columns * STEP - (STEP - SIDE)
    width = 2 * MARGIN + len(blocks) * block + (len(blocks) - 1) * GAP
    row_height = TITLE + SIDE + ANSWER
    height = HEAD + len(STAGES) * row_height
    figure = Figure(figsize=(width, height), facecolor=palette.paper)
    colours = (palette.clean, palette.adversarial, palette.purified)
    for number, name in enumerate(blocks):
        left = MARGIN + number * (block + GAP)
        _write(figure, left, 0.06, BLOCKS[name], palette.ink, va="top", fontweight="bold")
        panels: Tensor = getattr(show, name)
        for row, title in enumerate(("clean", attack, "purified")):
            top = HEAD + row * row_height
            _write(figure, left, top + TITLE - 0.08, title, colours[row])
            for column in range(columns):
                place = (left + column * STEP) / width, 1 - (top + TITLE + SIDE) / height
                axes = figure.add_axes((*place, SIDE / width, SIDE / height))
                _draw_panel(axes, panels[row, column], palette.faint)
                if name == "inputs":
                    _draw_answer(axes, int(show.labels[row, column]), int(show.y[column]), palette)
    return figure


def _write(figure: Figure, left: float, top: float, text: str, colour: str, **style: Any) -> None:
    """Letters at a place in inches from the upper left corner."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, text, fontsize=LETTERS, color=colour, **style)


def _draw_panel(axes: Axes, panel: Float[Tensor, "channels height width"], frame: str) -> None:
    axes.imshow(panel.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(frame)


def _draw_answer(axes: Axes, answer: int, truth: int, palette: Palette) -> None:
    right = answer == truth
    colour = palette.purified if right else palette.adversarial
    axes.set_xlabel(f"{answer} {'✓' if right else '✗'}", fontsize=LETTERS, color=colour, labelpad=4)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1.2 if right else 2.4)
