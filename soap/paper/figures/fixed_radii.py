"""Accuracy under PGD with one purification radius for all images (section 3.3: slight over-estimation helps)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.gathered import Material
from soap.evaluation.swept import by_radius
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.results import Row


def draw(material: Material, palette: Palette) -> Figure:
    """A panel a task."""
    figure, axes = panels.side_by_side(len(panels.TASKS), palette, width=3.8)
    for panel, model in zip(axes, panels.TASKS, strict=True):
        rows = by_radius(material.rows, model)
        title = f"{panels.method_of(model)}, {panels.network_of(model)}"
        if any(rows):  # a radius above 0; None alone is the tables' own row
            _draw_rows(panel, rows, title, palette)
        else:
            panels.head(panel, palette, title)
            panels.say(panel, palette, f"no rows of {model}\nwith one radius for all images yet")
    return figure


def _draw_rows(axes: Axes, rows: Mapping[float | None, Row], title: str, palette: Palette) -> None:
    radii = sorted(radius for radius in rows if radius is not None)
    one = rows[radii[0]]
    attack = panels.attack_radius(one)
    scale, unit = (1, "") if attack > 0.1 else (255, ", in 255ths")
    values, ends = panels.shares([rows[radius] for radius in radii])
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
    panels.head(axes, palette, title, x_label, "accuracy, %", f"{one.n:,} images")
    panels.legend(axes, palette)
