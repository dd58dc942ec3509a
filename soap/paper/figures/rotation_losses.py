"""SOAP-RP purified by squared error and by cross entropy: accuracy, and the radius that each chose (section 3.4)."""

from matplotlib.figure import Figure

from soap.evaluation.gathered import Material
from soap.evaluation.swept import by_rotation_loss
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.report.paper_figures.paired_bars import Bar, Case, draw_pairs, share
from soap.results import Row

MODEL = "cifar10-resnet18-rp"
LOSSES = ("squared error", "cross entropy")
ATTACKS = {"none": "clean\nimages", "pgd": "under\nPGD"}


def draw(material: Material, palette: Palette) -> Figure:
    """Left: accuracy; right: the mean radius that was chosen, with the attack's own marked."""
    rows = by_rotation_loss(material.rows, MODEL)
    figure, (accuracy, radius) = panels.side_by_side(2, palette, width=4.9, height=3.1)
    title = f"SOAP-RP, {panels.network_of(MODEL)}"
    if not any(loss == LOSSES[1] for _, loss in rows):
        for axes in (accuracy, radius):
            panels.head(axes, palette, title)
            panels.say(axes, palette, f"no rows of {MODEL}\npurified by either loss yet")
        return figure
    note = f"{next(iter(rows.values())).n:,} images"
    for axes, x_label, bar in (
        (accuracy, "accuracy, %", share),
        (radius, "mean radius $\\epsilon_{pfy}$, in 255ths (dotted: attack's)", _radius),
    ):
        panels.head(axes, palette, title, x_label, note=note)
        cases = [
            Case(name, (bar(rows.get((key, LOSSES[0]))), bar(rows.get((key, LOSSES[1])))), "not measured yet")
            for key, name in ATTACKS.items()
        ]
        draw_pairs(axes, cases, LOSSES, palette)
    attacked = [row for (attack, _), row in rows.items() if attack == "pgd"]
    if attacked:
        radius.axvline(255 * panels.attack_radius(attacked[0]), color=palette.ink, linestyle=(0, (1, 2)), linewidth=1.6)
    return figure


def _radius(row: Row | None) -> Bar | None:
    if row is None:
        return None
    mean = 255 * row.measures["mean_eps_pfy"]
    return Bar(mean, mean, mean)
