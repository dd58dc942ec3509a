"""SOAP-LC by the gradient that its purifier descends: which part of it defends (docs/label_consistency.md)."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.gathered import Material
from soap.evaluation.swept import by_gradient
from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.results import Row

MODEL = "cifar10-resnet18-lc"
HEIGHT = 0.26
ATTACKS = {"none": "clean images", "fgsm": "under FGSM", "pgd": "under PGD"}
LABELS = {
    "paper": '"paper": floor-indexed,\nas PyTorch 1.4.0 had it',
    "exact": '"exact":\nthe true gradient',
    "exact-bilinear": "exact, view two\nresized bilinearly",
    "exact-blurred": "exact,\nthen blurred 3 x 3",
    "view-two": "through view two alone,\nview one fixed",
    "stop": '"stop" (ours): through view\none alone, view two fixed',
    "paper-crop-30": "floor-indexed, view two\nof 30 pixels, not 28",
}
"""Of every variant, in the order of the evidence table."""
OURS = "stop"


def draw(material: Material, palette: Palette) -> Figure:
    """Three bars a gradient: on clean images, under FGSM and under PGD; our own choice stands on a band."""
    rows = by_gradient(material.rows, MODEL)
    figure, (axes,) = panels.side_by_side(1, palette, width=7.5, height=6.6)
    title = f"SOAP-LC, {panels.network_of(MODEL)}"
    if not rows:
        panels.head(axes, palette, title)
        panels.say(axes, palette, f"no rows of {MODEL}\nby the gradient of the purification loss yet")
        return figure
    panels.head(axes, palette, title, "accuracy, %", note=f"{next(iter(rows.values())).n:,} images")
    for at, name in enumerate(LABELS):
        _draw_group(axes, at, [rows.get((attack, name)) for attack in ATTACKS], palette)
    ours = [*LABELS].index(OURS)
    axes.axhspan(ours - 0.5, ours + 0.5, color=palette.faint, alpha=0.45, linewidth=0, zorder=0)
    axes.set_yticks(range(len(LABELS)), LABELS.values())
    axes.get_yticklabels()[ours].set_fontweight("bold")
    axes.set_ylim(len(LABELS) - 0.4, -0.6)
    axes.set_xlim(0, 108)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one for each label
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.09), "ncols": 3}
    panels.legend(axes, palette, handles=[*handles.values()], **below)
    return figure


def _draw_group(axes: Axes, at: int, rows: list[Row | None], palette: Palette) -> None:
    """The bars of one gradient; they differ in hatching as well as colour, and each has its value behind it."""
    looks: tuple[dict[str, Any], ...] = (
        {"facecolor": palette.clean, "edgecolor": palette.clean},
        {"facecolor": palette.paper, "edgecolor": palette.adversarial, "hatch": "////"},
        {"facecolor": palette.adversarial, "edgecolor": palette.adversarial},
    )
    if not any(rows):
        _write(axes, 0, at, "not measured yet", palette, style="italic")
        return
    for k, (row, label, look) in enumerate(zip(rows, ATTACKS.values(), looks, strict=True)):
        place = at + (k - 1) * HEIGHT
        if row is None:
            _write(axes, 0, place, "not measured yet", palette, style="italic")
            continue
        (value,), ends = panels.shares([row])
        axes.barh(place, value, HEIGHT * 0.92, label=label, xerr=ends, capsize=2, ecolor=palette.ink, zorder=2, **look)
        _write(axes, value + ends[1][0], place, f"{value:.1f}", palette)


def _write(axes: Axes, end: float, place: float, words: str, palette: Palette, style: str = "normal") -> None:
    axes.text(end + 1, place, words, va="center", fontsize=panels.LETTERS - 2, style=style, color=palette.ink)
