"""The plot of `soap tune`: auxiliary loss against the radius, clean and attacked (Figure 3 for the user's model)."""

from pathlib import Path

from matplotlib.figure import Figure

from soap.evaluation.tuning import Tuning
from soap.report.drawing import (
    LIGHT,
    add_legend,
    mark_attack,
    mark_elbow,
    panel_row,
    radius_axis,
    save_figure,
    set_titles,
    show_zero,
)

NAME = "tune"


def draw(tuning: Tuning) -> Figure:
    """Curves for the chosen gamma and T, with the attack's radius and the elbow."""
    figure, (axes,) = panel_row(1, width=6.4, height=4.2)
    best = tuning.best
    scale, x_label = radius_axis(tuning.eps_adv)
    radii = [radius * scale for radius in tuning.radii]
    lines = (
        ("attacked, purified", best.attacked, LIGHT.adversarial, "-", "o"),
        ("clean, purified", best.clean, LIGHT.clean, (0, (4, 1, 1, 1)), "s"),
    )
    for label, losses, colour, dashes, marker in lines:
        axes.plot(radii, losses, color=colour, linestyle=dashes, marker=marker, markersize=4, linewidth=2, label=label)
    mark_attack(axes, tuning.eps_adv * scale)
    at = tuning.radii.index(best.elbow)
    mark_elbow(axes, radii[at], best.attacked[at])
    show_zero(axes)
    name = tuning.model.replace("$", r"\$")  # $ starts mathematics in matplotlib
    title = f"{name}: $\\gamma$ = {best.step_size * scale:.3g}, T = {best.steps}"
    set_titles(axes, title, x_label, "mean auxiliary loss", f"{tuning.n:,} images")
    add_legend(axes)
    return figure


def save(tuning: Tuning, out: Path) -> list[Path]:
    """Write `out`/tune.json, tune.png and tune.svg; the same tuning gives the same bytes."""
    tuning.save(out / f"{NAME}.json")
    return [out / f"{NAME}.json", *save_figure(draw(tuning), out, NAME)]
