"""Drawings of the paper's figures and ablations, from `FigureData` only. A panel without data says so.

Here are the panels of one task each and the grids of example images; Figure 7 is in `soap.paper.training_time`.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.errors import unknown
from soap.paper.figure_data import FIGURES, TASKS, FigureData, FigureInput, name_of
from soap.paper.figure_records import CLEAN, Examples, RadiusCurve
from soap.paper.sweeps import SWEEPS
from soap.paper.training_time import draw_training_time
from soap.report.drawing import (
    LIGHT,
    add_image,
    add_legend,
    add_text,
    draw_loss_levels,
    empty_page,
    mark_attack,
    mark_elbow,
    panel_row,
    radius_axis,
    save_figure,
    set_titles,
    show_message,
    show_zero,
)
from soap.report.row_text import ATTACK_TITLES
from soap.results import Row

# --- One panel a task: losses against the radius (Figure 3), accuracy against beta (5) --------------------------------

LINEAR_BETA = 0.01
"""The axis is linear between -0.01 and 0.01, so that it includes beta = 0, and logarithmic beyond."""


def draw_task_panels(
    kind: str,
    draw_panel: Callable[[Axes, str, Any], None],
    data: FigureData,
    *,
    width: float = 3.5,
    height: float = 3.2,
) -> Figure:
    """One panel a task, drawn from the model's data of this kind; where these are missing, the panel says so.

    A single cell of a sweep is the row of a table, not a sweep.
    """
    figure, panels = panel_row(len(TASKS), width=width, height=height)
    for axes, model in zip(panels, TASKS, strict=True):
        found = data.get(kind, model)
        if found is None or (kind in SWEEPS and len(found) < 2):
            show_message(axes, name_of(model).title, textwrap.fill(f"no {FigureInput(kind, model).need} yet", 36))
        else:
            draw_panel(axes, name_of(model).title, found)
    return figure


def draw_losses(axes: Axes, title: str, curve: RadiusCurve) -> None:
    """Mean auxiliary loss against the purification radius, with the attack's radius and the elbow (Figure 3)."""
    scale, x_label = radius_axis(curve.eps_adv)
    draw_loss_levels(axes, curve.adversarial, curve.clean)
    radii = [radius * scale for radius in curve.radii]
    axes.plot(radii, curve.purified, color=LIGHT.purified, marker="o", markersize=4, linewidth=2, label="purified")
    mark_attack(axes, curve.eps_adv * scale)
    at = curve.radii.index(curve.elbow)
    mark_elbow(axes, radii[at], curve.purified[at])
    show_zero(axes)
    set_titles(axes, title, x_label, "mean auxiliary loss", f"{curve.n:,} images")
    add_legend(axes)


def draw_betas(axes: Axes, title: str, rows: Mapping[tuple[float, bool], Row]) -> None:
    """Accuracy before and after purification against beta of the auxiliary-aware attack (Figure 5)."""
    set_titles(axes, title, "$\\beta$", "accuracy, %", f"{next(iter(rows.values())).n:,} images")
    before: dict[str, Any] = {"color": LIGHT.adversarial, "marker": "s", "linestyle": (0, (5, 2))}
    after: dict[str, Any] = {"color": LIGHT.purified, "marker": "o"}
    for purified, label, look in ((False, "before purification", before), (True, "after purification", after)):
        own = {beta: row for (beta, side), row in rows.items() if side is purified}
        _draw_accuracies(axes, own, label=label, **look)
    axes.set_xscale("symlog", linthresh=LINEAR_BETA, linscale=0.7)
    ticks = [-100, -1, -0.01, 0.01, 1, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(0, color=LIGHT.faint, linewidth=1, zorder=0)
    axes.set_ylim(0, 100)
    add_legend(axes)


def _draw_accuracies(axes: Axes, rows: Mapping[float, Row], **look: Any) -> None:
    """Accuracies with their 95 % intervals as a line along the keys."""
    places = sorted(rows)
    values = [100 * rows[place].accuracy for place in places]
    ends = [[abs(100 * rows[x].interval[k] - y) for x, y in zip(places, values, strict=True)] for k in (0, 1)]
    axes.errorbar(places, values, yerr=ends, markersize=5, linewidth=1.8, capsize=3, **look)


# --- Example images, a row a class: clean, attacked and purified (Figures 2, 4, 8 to 10) ------------------------------

SIDE, STEP, GAP, HEAD, ROW_HEIGHT, MARGIN = 0.66, 0.72, 0.12, 0.95, 0.88, 0.1  # inches
MIN_WIDTH = 2.6  # inches, of a block: its title
EMPTY_WIDTH = 4.0  # inches, of a block without images

Column = tuple[str, str, int, bool]
"""Title of the group, title of the column, its index in the examples, and whether the decoder's output is shown."""


def draw_examples(name: str, attacks: Sequence[str], data: FigureData, *, decoded: bool = False) -> Figure:
    """Blocks of the figure's models side by side: clean images, then adversarial and purified ones for each attack.

    decoded: show the decoder's output of the same images as well.
    """
    found = {source.model: data.get("examples", source.model) for source in FIGURES[name].inputs}
    blocks = {model: [] if one is None else _columns(one, attacks, decoded) for model, one in found.items()}
    widths = {
        model: max(MIN_WIDTH, _place(columns, len(columns))) if columns else EMPTY_WIDTH
        for model, columns in blocks.items()
    }
    rows = max((len(shown.truth) for shown in found.values() if shown is not None), default=0)
    figure = empty_page(sum(widths.values()) + 2 * MARGIN * len(blocks), HEAD + rows * ROW_HEIGHT + 0.08)
    left = MARGIN
    for model, shown in found.items():
        add_text(figure, left, 0.26, name_of(model).title, fontweight="bold", fontsize=12)
        if shown is None:
            add_text(figure, left, 0.6, f"no images of {model} yet", style="italic")
        else:
            _draw_block(figure, left, shown, blocks[model])
        left += widths[model] + 2 * MARGIN
    return figure


def _columns(shown: Examples, attacks: Sequence[str], decoded: bool) -> list[Column]:
    columns: list[Column] = [("", CLEAN, shown.column(CLEAN), False)]
    for attack in attacks:
        columns += [
            (ATTACK_TITLES[attack], word, shown.column(attack, purified=purified), False)
            for word, purified in (("adv.", False), ("purified", True))
        ]
    if decoded and shown.decoded.size:
        columns += [("decoder's output", word, index, True) for _, word, index, _ in columns]
    return columns


def _place(columns: Sequence[Column], number: int) -> float:
    """Left end of a column in inches from the block's, or the block's width; groups have a gap between them."""
    gaps = sum(one[0] != two[0] for one, two in pairwise(columns[: number + 1]))
    return number * STEP + gaps * GAP


def _draw_block(figure: Figure, left: float, shown: Examples, columns: Sequence[Column]) -> None:
    font_size = 9 if all(name.isdigit() for name in shown.classes) else 6.5
    group = ""
    for number, (title, word, column, decoded) in enumerate(columns):
        x = left + _place(columns, number)
        if title != group:
            add_text(figure, x, HEAD - 0.32, title, fontweight="bold")
            group = title
        add_text(figure, x + SIDE / 2, HEAD - 0.1, word, ha="center", fontsize=9)
        for row, truth in enumerate(shown.truth):
            top = HEAD + row * ROW_HEIGHT
            if decoded:
                add_image(figure, x, top, SIDE, shown.decoded[column, row])
                continue
            prediction = shown.predictions[column][row]
            add_image(
                figure,
                x,
                top,
                SIDE,
                shown.images[column, row],
                prediction=shown.classes[prediction],
                correct=prediction == truth,
                font_size=font_size,
            )


# --- All drawings -----------------------------------------------------------------------------------------------------

ALL_ATTACKS = ("fgsm", "pgd", "cw", "df")

DRAWINGS: dict[str, Callable[[FigureData], Figure]] = {
    "figure-2": partial(draw_examples, "figure-2", ("pgd",), decoded=True),
    "figure-3": partial(draw_task_panels, "curve", draw_losses),
    "figure-4": partial(draw_examples, "figure-4", ("pgd",)),
    "figure-5": partial(draw_task_panels, "betas", draw_betas, width=3.9),
    "figure-7": draw_training_time,
    "figure-8": partial(draw_examples, "figure-8", ALL_ATTACKS),
    "figure-9": partial(draw_examples, "figure-9", ALL_ATTACKS),
    "figure-10": partial(draw_examples, "figure-10", ALL_ATTACKS),
}
"""By name; the other figures of `soap.paper.figure_data.FIGURES` are tables."""


def draw(name: str, data: FigureData, out: Path) -> list[Path]:
    """Write `out`/NAME.png and `out`/NAME.svg; the same data gives the same bytes."""
    if name not in DRAWINGS:
        raise unknown("figure", name, DRAWINGS)
    return save_figure(DRAWINGS[name](data), out, name)
