"""Accuracy against beta of the auxiliary-aware attack (Figure 5), and against a fixed purification radius."""

from collections.abc import Mapping
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.figure_data import FigureData
from soap.paper.figures.task_panels import draw_task_panels
from soap.paper.row_queries import attack_radius, by_beta, by_radius
from soap.report.drawing import Palette
from soap.report.panels import accuracies, add_legend, set_titles
from soap.results import Row

LINEAR_BETA = 0.01
"""The axis is linear between -0.01 and 0.01, so that it includes beta = 0, and logarithmic beyond."""


def draw_betas(data: FigureData, palette: Palette) -> Figure:
    """A panel a task: accuracy before and after purification against beta."""
    missing = "no rows of {model}\nunder the auxiliary-aware attack yet"
    panel = partial(_draw_betas, palette=palette)
    return draw_task_panels(lambda model: by_beta(data.rows, model), panel, missing, palette, width=3.9)


def _draw_betas(axes: Axes, title: str, rows: Mapping[tuple[float, bool], Row], palette: Palette) -> None:
    set_titles(axes, palette, title, "$\\beta$", "accuracy, %", f"{next(iter(rows.values())).n:,} images")
    for purified, label, colour, marker, line in (
        (False, "before purification", palette.adversarial, "s", (0, (5, 2))),
        (True, "after purification", palette.purified, "o", "-"),
    ):
        betas = sorted(beta for beta, own in rows if own is purified)
        values, ends = accuracies([rows[beta, purified] for beta in betas])
        axes.errorbar(
            betas, values, yerr=ends, color=colour, marker=marker, markersize=5, linestyle=line, linewidth=1.8,
            capsize=3, label=label,
        )  # fmt: skip
    axes.set_xscale("symlog", linthresh=LINEAR_BETA, linscale=0.7)
    ticks = [-100, -1, -0.01, 0.01, 1, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(0, color=palette.faint, linewidth=1, zorder=0)
    axes.set_ylim(0, 100)
    add_legend(axes, palette)


def draw_radii(data: FigureData, palette: Palette) -> Figure:
    """A panel a task: accuracy under PGD with one radius for all images (section 3.3)."""

    def find(model: str) -> Mapping[float | None, Row]:
        rows = by_radius(data.rows, model)
        return rows if any(rows) else {}  # a radius above 0; the key None alone is the row of a table

    missing = "no rows of {model}\nwith one radius for all images yet"
    return draw_task_panels(find, partial(_draw_radii, palette=palette), missing, palette, width=3.8)


def _draw_radii(axes: Axes, title: str, rows: Mapping[float | None, Row], palette: Palette) -> None:
    radii = sorted(radius for radius in rows if radius is not None)
    first = rows[radii[0]]
    attack = attack_radius(first)
    scale, unit = (1, "") if attack > 0.1 else (255, ", in 255ths")
    values, ends = accuracies([rows[radius] for radius in radii])
    axes.errorbar(
        [radius * scale for radius in radii], values, yerr=ends, color=palette.purified, marker="o", markersize=5,
        linewidth=1.8, capsize=3, label="the same radius for all",
    )  # fmt: skip
    if None in rows:
        chosen = 100 * rows[None].accuracy
        label = f"chosen for each, {chosen:.1f} %"
        axes.axhline(chosen, color=palette.clean, linestyle=(0, (6, 2)), linewidth=1.6, label=label)
    label = f"attack's radius, {attack * scale:.3g}"
    axes.axvline(attack * scale, color=palette.ink, linestyle=(0, (1, 2)), linewidth=1.4, label=label)
    axes.set_ylim(0, 100)
    x_label = f"purification radius $\\epsilon_{{pfy}}${unit}"
    set_titles(axes, palette, title, x_label, "accuracy, %", f"{first.n:,} images")
    add_legend(axes, palette)
