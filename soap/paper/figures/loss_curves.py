"""Auxiliary loss against the purification radius, with the attack's own radius and the elbow (Figure 3)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.curves import RadiusCurve, file_name
from soap.evaluation.gathered import Material
from soap.report.drawing import Palette, show_zero
from soap.report.paper_figures import panels


def draw(material: Material, palette: Palette) -> Figure:
    """A panel a task."""
    figure, axes = panels.side_by_side(len(panels.TASKS), palette)
    for panel, model in zip(axes, panels.TASKS, strict=True):
        curve = material.find(file_name(model), RadiusCurve)
        title = f"{panels.method_of(model)}, {panels.network_of(model)}"
        if curve is None:
            panels.head(panel, palette, title)
            panels.say(panel, palette, f"no losses of\n{model} yet")
        else:
            _draw_curve(panel, curve, title, palette)
    return figure


def _draw_curve(axes: Axes, curve: RadiusCurve, title: str, palette: Palette) -> None:
    scale = 1 if curve.eps_adv > 0.1 else 255  # the paper counts colour images' radii in 255ths
    levels = (
        ("adversarial", curve.adversarial, palette.adversarial, (0, (6, 2))),
        ("clean", curve.clean, palette.clean, (0, (4, 1, 1, 1))),
    )
    for label, level, colour, dashes in levels:
        axes.axhline(level, color=colour, linestyle=dashes, linewidth=1.8, label=label)
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
    panels.head(axes, palette, title, x_label, "mean auxiliary loss", f"{curve.n:,} images")
    panels.legend(axes, palette)
