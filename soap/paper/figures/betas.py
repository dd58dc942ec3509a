"""Accuracy under the auxiliary-aware attack against beta, before and after purification (Figure 5)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.gathered import Material
from soap.evaluation.swept import by_beta
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.results import Row

LINEAR = 0.01
"""Between -0.01 and 0.01 the axis is linear, so that beta = 0 has a place; beyond, logarithmic."""


def draw(material: Material, palette: Palette) -> Figure:
    """A panel a task."""
    figure, axes = panels.side_by_side(len(panels.TASKS), palette, width=3.9)
    for panel, model in zip(axes, panels.TASKS, strict=True):
        rows = by_beta(material.rows, model)
        title = f"{panels.method_of(model)}, {panels.network_of(model)}"
        if rows:
            note = f"{next(iter(rows.values())).n:,} images"
            panels.head(panel, palette, title, "$\\beta$", "accuracy, %", note)
            _draw_rows(panel, rows, palette)
        else:
            panels.head(panel, palette, title)
            panels.say(panel, palette, f"no rows of {model}\nunder the auxiliary-aware attack yet")
    return figure


def _draw_rows(axes: Axes, rows: Mapping[tuple[float, bool], Row], palette: Palette) -> None:
    for purified, label, colour, marker, line in (
        (False, "before purification", palette.adversarial, "s", (0, (5, 2))),
        (True, "after purification", palette.purified, "o", "-"),
    ):
        betas = sorted(beta for beta, own in rows if own is purified)
        values, ends = panels.shares([rows[beta, purified] for beta in betas])
        axes.errorbar(
            betas, values, yerr=ends, color=colour, marker=marker, markersize=5, linestyle=line, linewidth=1.8,
            capsize=3, label=label,
        )  # fmt: skip
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.7)
    ticks = [-100, -1, -0.01, 0.01, 1, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(0, color=palette.faint, linewidth=1, zorder=0)
    axes.set_ylim(0, 100)
    panels.legend(axes, palette)
