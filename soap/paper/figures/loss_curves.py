"""Mean auxiliary loss against the purification radius, with the attack's radius and the elbow (Figure 3)."""

from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.figure_data import FigureData
from soap.paper.figures.task_panels import draw_task_panels
from soap.paper.radius_curve import RadiusCurve, file_name
from soap.report.demo_figures import draw_loss_levels
from soap.report.drawing import Palette, show_zero
from soap.report.panels import add_legend, set_titles


def draw(data: FigureData, palette: Palette) -> Figure:
    """A panel a task."""
    panel = partial(_draw_curve, palette=palette)
    return draw_task_panels(
        lambda model: data.find(file_name(model), RadiusCurve), panel, "no losses of\n{model} yet", palette
    )


def _draw_curve(axes: Axes, title: str, curve: RadiusCurve, palette: Palette) -> None:
    scale = 1 if curve.eps_adv > 0.1 else 255  # the paper gives radii of colour images in 255ths
    draw_loss_levels(axes, curve.adversarial, curve.clean, palette)
    radii = [radius * scale for radius in curve.radii]
    axes.plot(radii, curve.purified, color=palette.purified, marker="o", markersize=4, linewidth=2, label="purified")
    attack = f"attack's radius, {curve.eps_adv * scale:.3g}"
    axes.axvline(curve.eps_adv * scale, color=palette.ink, linestyle=(0, (1, 2)), linewidth=1.4, label=attack)
    at = curve.radii.index(curve.elbow)
    axes.plot(
        [radii[at]], [curve.purified[at]], marker="^", markersize=10, linestyle="none", markerfacecolor=palette.paper,
        markeredgecolor=palette.ink, markeredgewidth=1.6, label=f"elbow, {radii[at]:.3g}",
    )  # fmt: skip
    show_zero(axes)
    unit = "" if scale == 1 else ", in 255ths"
    x_label = f"purification radius $\\epsilon_{{pfy}}${unit}"
    set_titles(axes, palette, title, x_label, "mean auxiliary loss", f"{curve.n:,} images")
    add_legend(axes, palette)
