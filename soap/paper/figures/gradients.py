"""Accuracy of SOAP-LC by the gradient of its purification loss (docs/label_consistency.md)."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.figure_data import FigureData
from soap.paper.model_names import title_of
from soap.paper.row_queries import by_gradient
from soap.report.drawing import Palette
from soap.report.panels import FONT_SIZE, accuracies, add_legend, panel_row, set_titles, show_message
from soap.results import Row

MODEL = "cifar10-resnet18-lc"
BAR_HEIGHT = 0.26
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
"""Of every variant, in the order of the page's table."""
OUR_VARIANT = "stop"


def draw(data: FigureData, palette: Palette) -> Figure:
    """Three bars a gradient: clean images, under FGSM, under PGD; our own choice has a grey background."""
    rows = by_gradient(data.rows, MODEL)
    figure, (axes,) = panel_row(1, palette, width=7.5, height=6.6)
    title = title_of(MODEL)
    if not rows:
        set_titles(axes, palette, title)
        show_message(axes, palette, f"no rows of {MODEL}\nby the gradient of the purification loss yet")
        return figure
    set_titles(axes, palette, title, "accuracy, %", note=f"{next(iter(rows.values())).n:,} images")
    for at, name in enumerate(LABELS):
        _draw_group(axes, at, [rows.get((attack, name)) for attack in ATTACKS], palette)
    ours = [*LABELS].index(OUR_VARIANT)
    axes.axhspan(ours - 0.5, ours + 0.5, color=palette.faint, alpha=0.45, linewidth=0, zorder=0)
    axes.set_yticks(range(len(LABELS)), LABELS.values())
    axes.get_yticklabels()[ours].set_fontweight("bold")
    axes.set_ylim(len(LABELS) - 0.4, -0.6)
    axes.set_xlim(0, 108)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one for each label
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.09), "ncols": 3}
    add_legend(axes, palette, handles=[*handles.values()], **below)
    return figure


def _draw_group(axes: Axes, at: int, rows: list[Row | None], palette: Palette) -> None:
    """Bars of one gradient with their values; they differ in hatching as well as colour."""
    looks: tuple[dict[str, Any], ...] = (
        {"facecolor": palette.clean, "edgecolor": palette.clean},
        {"facecolor": palette.paper, "edgecolor": palette.adversarial, "hatch": "////"},
        {"facecolor": palette.adversarial, "edgecolor": palette.adversarial},
    )
    if not any(rows):
        _write(axes, 0, at, "not measured yet", palette, style="italic")
        return
    for k, (row, label, look) in enumerate(zip(rows, ATTACKS.values(), looks, strict=True)):
        place = at + (k - 1) * BAR_HEIGHT
        if row is None:
            _write(axes, 0, place, "not measured yet", palette, style="italic")
            continue
        (value,), ends = accuracies([row])
        axes.barh(
            place, value, BAR_HEIGHT * 0.92, label=label, xerr=ends, capsize=2, ecolor=palette.ink, zorder=2, **look
        )
        _write(axes, value + ends[1][0], place, f"{value:.1f}", palette)


def _write(axes: Axes, end: float, place: float, words: str, palette: Palette, style: str = "normal") -> None:
    axes.text(end + 1, place, words, va="center", fontsize=FONT_SIZE - 2, style=style, color=palette.ink)
