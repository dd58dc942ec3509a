"""The auxiliary loss along the purifier's steps and against its radius (the paper's Figure 3a)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.showcase import Showcase
from soap.report.drawing import Palette, show_zero

LETTERS = 12  # points


def draw_steps(show: Showcase, palette: Palette) -> Figure:
    """Mean auxiliary loss after t = 0 ... T steps, each example at the radius chosen for it."""
    figure, axes = _axes(show, palette, "purification step t")
    steps = range(len(show.loss_by_step))
    axes.plot(steps, show.loss_by_step, color=palette.purified, marker="o", linewidth=2, label="being purified")
    axes.set_xticks([*steps])
    _legend(axes, palette)
    return figure


def draw_radii(show: Showcase, palette: Palette) -> Figure:
    """Mean auxiliary loss after all steps, every example at the same radius, with the attack's radius marked."""
    figure, axes = _axes(show, palette, "purification radius $\\epsilon_{pfy}$")
    axes.plot(show.radii, show.loss_by_radius, color=palette.purified, marker="o", linewidth=2, label="purified")
    label = f"attack's radius, {show.eps_adv:.3g}"
    axes.axvline(show.eps_adv, color=palette.ink, linestyle=(0, (2, 2)), linewidth=1.2, label=label)
    _legend(axes, palette)
    return figure


def _axes(show: Showcase, palette: Palette, x_label: str) -> tuple[Figure, Axes]:
    """Axes with the clean and the adversarial level drawn in."""
    figure = Figure(figsize=(4.6, 3.3), facecolor=palette.paper, layout="constrained")
    axes = figure.add_subplot(facecolor=palette.paper)
    levels = (
        ("adversarial", show.loss_by_step[0], palette.adversarial, (0, (6, 2))),
        ("clean", show.loss_clean, palette.clean, (0, (4, 1, 1, 1))),
    )
    for label, level, colour, dashes in levels:
        axes.axhline(level, color=colour, linestyle=dashes, linewidth=1.8, label=label)
    axes.set_xlabel(x_label, fontsize=LETTERS, color=palette.ink)
    axes.set_ylabel("mean auxiliary loss", fontsize=LETTERS, color=palette.ink)
    axes.tick_params(labelsize=LETTERS, colors=palette.ink)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(palette.ink)
    return figure, axes


def _legend(axes: Axes, palette: Palette) -> None:
    show_zero(axes)
    axes.legend(loc="best", frameon=False, fontsize=LETTERS, labelcolor=palette.ink)
