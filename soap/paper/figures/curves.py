"""One panel a task: losses against the radius (Figure 3), accuracy against beta (5), ablations of radius and steps."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from soap.paper.figure_data import FigureData
from soap.paper.figure_list import TASKS
from soap.paper.model_names import title_of
from soap.paper.radius_curve import RadiusCurve
from soap.paper.row_queries import attack_radius, by_beta, by_radius, by_steps
from soap.report.demo_figures import draw_loss_levels
from soap.report.drawing import (
    FONT_SIZE,
    LIGHT,
    Palette,
    accuracies,
    add_legend,
    mark_attack,
    mark_elbow,
    panel_row,
    radius_axis,
    set_titles,
    show_message,
    show_zero,
)
from soap.results import Row

LINEAR_BETA = 0.01
"""The axis is linear between -0.01 and 0.01, so that it includes beta = 0, and logarithmic beyond."""
PAPER_STEPS = 5
"""The paper's T; its gamma is the middle one of the sweep."""

PanelData = TypeVar("PanelData")


def draw_task_panels(
    find: Callable[[str], PanelData | None],
    draw_panel: Callable[[Axes, str, PanelData, Palette], None],
    missing: str,
    palette: Palette,
    *,
    width: float = 3.5,
    height: float = 3.2,
) -> Figure:
    """Draw each model's data; where `find` returns nothing, the panel shows `missing`, with {model} filled in."""
    figure, panels = panel_row(len(TASKS), palette, width=width, height=height)
    for axes, model in zip(panels, TASKS, strict=True):
        found = find(model)
        if found:
            draw_panel(axes, title_of(model), found, palette)
        else:
            set_titles(axes, palette, title_of(model))
            show_message(axes, palette, missing.format(model=model))
    return figure


def draw_losses(data: FigureData, palette: Palette) -> Figure:
    """Mean auxiliary loss against the purification radius, with the attack's radius and the elbow."""
    return draw_task_panels(
        lambda model: data.find(RadiusCurve, model), _draw_losses, "no losses of\n{model} yet", palette
    )


def _draw_losses(axes: Axes, title: str, curve: RadiusCurve, palette: Palette) -> None:
    scale, x_label = radius_axis(curve.eps_adv)
    draw_loss_levels(axes, curve.adversarial, curve.clean, palette)
    radii = [radius * scale for radius in curve.radii]
    axes.plot(radii, curve.purified, color=palette.purified, marker="o", markersize=4, linewidth=2, label="purified")
    mark_attack(axes, curve.eps_adv * scale, palette)
    at = curve.radii.index(curve.elbow)
    mark_elbow(axes, radii[at], curve.purified[at], palette)
    show_zero(axes)
    set_titles(axes, palette, title, x_label, "mean auxiliary loss", f"{curve.n:,} images")
    add_legend(axes, palette)


def draw_betas(data: FigureData, palette: Palette) -> Figure:
    """Accuracy before and after purification against beta of the auxiliary-aware attack."""
    missing = "no rows of {model}\nunder the auxiliary-aware attack yet"
    return draw_task_panels(lambda model: by_beta(data.rows, model), _draw_betas, missing, palette, width=3.9)


def _draw_betas(axes: Axes, title: str, rows: Mapping[tuple[float, bool], Row], palette: Palette) -> None:
    set_titles(axes, palette, title, "$\\beta$", "accuracy, %", f"{next(iter(rows.values())).n:,} images")
    sides: tuple[tuple[bool, dict[str, Any]], ...] = (
        (
            False,
            {"label": "before purification", "color": palette.adversarial, "marker": "s", "linestyle": (0, (5, 2))},
        ),
        (True, {"label": "after purification", "color": palette.purified, "marker": "o"}),
    )
    for purified, look in sides:
        _draw_accuracies(axes, {beta: row for (beta, own), row in rows.items() if own is purified}, **look)
    axes.set_xscale("symlog", linthresh=LINEAR_BETA, linscale=0.7)
    ticks = [-100, -1, -0.01, 0.01, 1, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(0, color=palette.faint, linewidth=1, zorder=0)
    axes.set_ylim(0, 100)
    add_legend(axes, palette)


def draw_radii(data: FigureData, palette: Palette) -> Figure:
    """Accuracy under PGD with one radius for all images (section 3.3)."""

    def find(model: str) -> Mapping[float | None, Row]:
        rows = by_radius(data.rows, model)
        return rows if any(rows) else {}  # a radius above 0; the key None alone is the row of a table

    missing = "no rows of {model}\nwith one radius for all images yet"
    return draw_task_panels(find, _draw_radii, missing, palette, width=3.8)


def _draw_radii(axes: Axes, title: str, rows: Mapping[float | None, Row], palette: Palette) -> None:
    first = next(iter(rows.values()))
    attack = attack_radius(first)
    scale, x_label = radius_axis(attack)
    fixed = {radius * scale: row for radius, row in rows.items() if radius is not None}
    _draw_accuracies(axes, fixed, color=palette.purified, marker="o", label="the same radius for all")
    if None in rows:
        chosen = 100 * rows[None].accuracy
        label = f"chosen for each, {chosen:.1f} %"
        axes.axhline(chosen, color=palette.clean, linestyle=(0, (6, 2)), linewidth=1.6, label=label)
    mark_attack(axes, attack * scale, palette)
    axes.set_ylim(0, 100)
    set_titles(axes, palette, title, x_label, "accuracy, %", f"{first.n:,} images")
    add_legend(axes, palette)


def _draw_accuracies(axes: Axes, rows: Mapping[float, Row], **look: Any) -> None:
    """Accuracies with their 95 % intervals as a line along the keys."""
    places = sorted(rows)
    values, ends = accuracies([rows[place] for place in places])
    axes.errorbar(places, values, yerr=ends, markersize=5, linewidth=1.8, capsize=3, **look)


def draw_steps(data: FigureData, palette: Palette) -> Figure:
    """Accuracy under PGD as a heat map: a row a step size, a column a number of steps (section A.2)."""

    def find(model: str) -> Mapping[tuple[float, int], Row]:
        cells = by_steps(data.rows, model)
        return cells if len(cells) > 1 else {}  # a single one is the row of a table, not a sweep

    missing = "no rows of {model}\nby step size and steps yet"
    return draw_task_panels(find, _draw_steps, missing, palette, width=4.2, height=3.7)


def _draw_steps(axes: Axes, title: str, cells: Mapping[tuple[float, int], Row], palette: Palette) -> None:
    first = next(iter(cells.values()))
    set_titles(axes, palette, title, "number of steps $T$", "step size $\\gamma$", f"{first.n:,} images")
    gammas, steps = sorted({gamma for gamma, _ in cells}), sorted({number for _, number in cells})
    table = np.full((len(gammas), len(steps)), np.nan)
    for (gamma, number), row in cells.items():
        k, at = gammas.index(gamma), steps.index(number)
        table[k, at] = 100 * row.accuracy
        colour = "white" if table[k, at] < 50 else "black"  # depends on the cell, not on the page
        axes.text(at, k, f"{table[k, at]:.1f}", ha="center", va="center", fontsize=FONT_SIZE, color=colour)
    axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto", origin="lower")
    axes.set_xticks(range(len(steps)), [str(number) for number in steps])
    colour_image = max(gammas) < 0.1
    axes.set_yticks(
        range(len(gammas)), [f"{gamma * 255:.3g}/255" if colour_image else f"{gamma:.3g}" for gamma in gammas]
    )
    middle = gammas[len(gammas) // 2]
    if (middle, PAPER_STEPS) in cells:
        corner = (steps.index(PAPER_STEPS) - 0.42, gammas.index(middle) - 0.42)
        axes.add_patch(Rectangle(corner, 0.84, 0.84, fill=False, edgecolor=LIGHT.adversarial, linewidth=3))
    _draw_reach(axes, gammas, steps, attack_radius(first))


def _draw_reach(axes: Axes, gammas: list[float], steps: list[int], radius: float) -> None:
    """Dashed line between cells whose gamma * T reaches the attack's radius and those that do not."""
    reach = np.outer(gammas, steps) >= radius * (1 - 1e-6)  # k * gamma and eps differ in the last bits
    for k, at in np.ndindex(*reach.shape):
        if k and reach[k, at] != reach[k - 1, at]:
            axes.plot([at - 0.5, at + 0.5], [k - 0.5, k - 0.5], color="white", linestyle="--", linewidth=1.6)
        if at and reach[k, at] != reach[k, at - 1]:
            axes.plot([at - 0.5, at - 0.5], [k - 0.5, k + 0.5], color="white", linestyle="--", linewidth=1.6)
