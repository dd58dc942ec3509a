"""Accuracy under PGD by step size and number of steps of the purifier (section A.2)."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from soap.paper.figure_data import FigureData
from soap.paper.figures.task_panels import draw_task_panels
from soap.paper.row_queries import attack_radius, by_steps
from soap.report.drawing import LIGHT, Palette
from soap.report.panels import FONT_SIZE, set_titles
from soap.results import Row

PAPER_STEPS = 5
"""The paper's T; its gamma is the middle one of the sweep."""


def draw(data: FigureData, palette: Palette) -> Figure:
    """A panel a task: a row a step size, a column a number of steps."""

    def find(model: str) -> Mapping[tuple[float, int], Row]:
        cells = by_steps(data.rows, model)
        return cells if len(cells) > 1 else {}  # a single one is the row of a table, not a sweep

    missing = "no rows of {model}\nby step size and steps yet"
    return draw_task_panels(find, partial(_draw_cells, palette=palette), missing, palette, width=4.2, height=3.7)


def _draw_cells(axes: Axes, title: str, cells: Mapping[tuple[float, int], Row], palette: Palette) -> None:
    note = f"{next(iter(cells.values())).n:,} images"
    set_titles(axes, palette, title, "number of steps $T$", "step size $\\gamma$", note)
    gammas, steps = sorted({gamma for gamma, _ in cells}), sorted({number for _, number in cells})
    table = np.full((len(gammas), len(steps)), np.nan)
    for (gamma, number), row in cells.items():
        table[gammas.index(gamma), steps.index(number)] = 100 * row.accuracy
    axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto", origin="lower")
    for gamma, number in cells:
        k, at = gammas.index(gamma), steps.index(number)
        dark = table[k, at] < 50  # the text colour depends on the cell, not on the page
        axes.text(
            at, k, f"{table[k, at]:.1f}", ha="center", va="center", fontsize=FONT_SIZE,
            color="white" if dark else "black",
        )  # fmt: skip
    axes.set_xticks(range(len(steps)), [str(number) for number in steps])
    colour_image = max(gammas) < 0.1
    axes.set_yticks(range(len(gammas)), [_step_size_text(gamma, colour_image) for gamma in gammas])
    middle = gammas[len(gammas) // 2]
    if (middle, PAPER_STEPS) in cells:
        corner = (steps.index(PAPER_STEPS) - 0.42, gammas.index(middle) - 0.42)
        axes.add_patch(Rectangle(corner, 0.84, 0.84, fill=False, edgecolor=LIGHT.adversarial, linewidth=3))
    _draw_reach(axes, gammas, steps, attack_radius(next(iter(cells.values()))))


def _draw_reach(axes: Axes, gammas: list[float], steps: list[int], radius: float) -> None:
    """Dashed line between cells whose gamma * T reaches the attack's radius and those that do not."""
    reach = np.outer(gammas, steps) >= radius * (1 - 1e-6)  # k * gamma and eps differ in the last bits
    for k, at in np.ndindex(*reach.shape):
        if k and reach[k, at] != reach[k - 1, at]:
            axes.plot([at - 0.5, at + 0.5], [k - 0.5, k - 0.5], color="white", linestyle="--", linewidth=1.6)
        if at and reach[k, at] != reach[k, at - 1]:
            axes.plot([at - 0.5, at - 0.5], [k - 0.5, k + 0.5], color="white", linestyle="--", linewidth=1.6)


def _step_size_text(gamma: float, colour_image: bool) -> str:
    return f"{gamma * 255:.3g}/255" if colour_image else f"{gamma:.3g}"
