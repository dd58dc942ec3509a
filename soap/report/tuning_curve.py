"""The plot of `soap tune`: auxiliary loss against the radius, clean and attacked (Figure 3 for the user's model)."""

from pathlib import Path

from matplotlib.figure import Figure

from soap.evaluation.tuning import Tuning
from soap.report import panels
from soap.report.drawing import LIGHT, Palette, save_figure, show_zero

NAME = "tune"


def draw(tuning: Tuning, palette: Palette = LIGHT) -> Figure:
    """Curves for the chosen gamma and T, with the attack's radius and the elbow."""
    figure, (axes,) = panels.panel_row(1, palette, width=6.4, height=4.2)
    best = tuning.best
    scale = 1 if tuning.eps_adv > 0.1 else 255  # small radii are in grey levels, as in the paper
    radii = [radius * scale for radius in tuning.radii]
    lines = (
        ("attacked, purified", best.attacked, palette.adversarial, "-", "o"),
        ("clean, purified", best.clean, palette.clean, (0, (4, 1, 1, 1)), "s"),
    )
    for label, losses, colour, dashes, marker in lines:
        axes.plot(radii, losses, color=colour, linestyle=dashes, marker=marker, markersize=4, linewidth=2, label=label)
    attack = f"attack's radius, {tuning.eps_adv * scale:.3g}"
    axes.axvline(tuning.eps_adv * scale, color=palette.ink, linestyle=(0, (1, 2)), linewidth=1.4, label=attack)
    at = tuning.radii.index(best.elbow)
    axes.plot(
        [radii[at]], [best.attacked[at]], marker="^", markersize=11, linestyle="none", markerfacecolor=palette.paper,
        markeredgecolor=palette.ink, markeredgewidth=1.6, label=f"elbow, {radii[at]:.3g}",
    )  # fmt: skip
    show_zero(axes)
    unit = "" if scale == 1 else ", in 255ths"
    name = tuning.model.replace("$", r"\$")  # $ starts mathematics in matplotlib
    title = f"{name}: $\\gamma$ = {best.step_size * scale:.3g}, T = {best.steps}"
    x_label = f"purification radius $\\epsilon_{{pfy}}${unit}"
    panels.set_titles(axes, palette, title, x_label, "mean auxiliary loss", f"{tuning.n:,} images")
    panels.add_legend(axes, palette)
    return figure


def save(tuning: Tuning, out: Path) -> list[Path]:
    """Write `out`/tune.json, tune.png and tune.svg; the same tuning gives the same bytes."""
    tuning.save(out / f"{NAME}.json")
    return [out / f"{NAME}.json", *save_figure(draw(tuning), out, NAME)]
