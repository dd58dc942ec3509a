"""Two ablations as pairs of bars: label leaking of FGSM training (section 4.1), and the rotation losses (3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.epoch_times import NETWORKS
from soap.paper.figure_data import FigureData
from soap.paper.model_names import data_of, network_of, title_of
from soap.paper.row_queries import attack_radius, by_attack, by_rotation_loss
from soap.report.drawing import Palette
from soap.report.panels import FONT_SIZE, add_legend, panel_row, set_titles, show_message
from soap.results import Row

BAR_HEIGHT = 0.38
HATCHES = ("", "////")
"""Bars differ in hatching as well as colour."""
ROTATION_MODEL = "cifar10-resnet18-rp"
ROTATION_LOSSES = ("squared error", "cross entropy")
ROTATION_ATTACKS = {"none": "clean\nimages", "pgd": "under\nPGD"}


@dataclass(frozen=True)
class Bar:
    """A value and the ends of its 95 % interval (the value itself if it has none)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BarPair:
    """Two bars with one name; `absent` is the text for a missing one."""

    name: str
    pair: tuple[Bar | None, Bar | None]
    absent: str


def draw_label_leaking(data: FigureData, palette: Palette) -> Figure:
    """A pair of bars a network: clean images and under FGSM; a longer second bar means that labels leak."""
    figure, (axes,) = panel_row(1, palette, width=7.5, height=4.2)
    pairs = []
    for model in (f"{network}-fgsm-at" for network in NETWORKS):
        rows = by_attack(data.rows, model)
        bars = (_accuracy(rows.get("none")), _accuracy(rows.get("fgsm")))
        name = f"{network_of(model)}\n{data_of(model)}"
        pairs.append(BarPair(name, bars, f"no rows of {model} clean and under FGSM yet"))
    set_titles(axes, palette, "Networks trained on FGSM examples", "accuracy, %")
    draw_pairs(axes, pairs, ("clean images", "under FGSM"), palette)
    return figure


def draw_rotation_losses(data: FigureData, palette: Palette) -> Figure:
    """Left: accuracy of SOAP-RP by purification loss; right: the mean chosen radius, with the attack's marked."""
    rows = by_rotation_loss(data.rows, ROTATION_MODEL)
    figure, (accuracy, radius) = panel_row(2, palette, width=4.9, height=3.1)
    title = title_of(ROTATION_MODEL)
    if not any(loss == ROTATION_LOSSES[1] for _, loss in rows):
        for axes in (accuracy, radius):
            set_titles(axes, palette, title)
            show_message(axes, palette, f"no rows of {ROTATION_MODEL}\npurified by either loss yet")
        return figure
    note = f"{next(iter(rows.values())).n:,} images"
    for axes, x_label, bar in (
        (accuracy, "accuracy, %", _accuracy),
        (radius, "mean radius $\\epsilon_{pfy}$, in 255ths (dotted: attack's)", _radius),
    ):
        set_titles(axes, palette, title, x_label, note=note)
        pairs = [
            BarPair(
                name,
                (bar(rows.get((key, ROTATION_LOSSES[0]))), bar(rows.get((key, ROTATION_LOSSES[1])))),
                "not measured yet",
            )
            for key, name in ROTATION_ATTACKS.items()
        ]
        draw_pairs(axes, pairs, ROTATION_LOSSES, palette)
    attacked = [row for (attack, _), row in rows.items() if attack == "pgd"]
    if attacked:
        radius.axvline(255 * attack_radius(attacked[0]), color=palette.ink, linestyle=(0, (1, 2)), linewidth=1.6)
    return figure


def _accuracy(row: Row | None) -> Bar | None:
    return None if row is None else Bar(100 * row.accuracy, *(100 * bound for bound in row.interval))


def _radius(row: Row | None) -> Bar | None:
    if row is None:
        return None
    mean = 255 * row.measures["mean_eps_pfy"]
    return Bar(mean, mean, mean)


def draw_pairs(axes: Axes, pairs: Sequence[BarPair], labels: tuple[str, str], palette: Palette) -> None:
    """Horizontal bars with their values behind them; the first pair on top."""
    longest = max((bar.high for pair in pairs for bar in pair.pair if bar is not None), default=1.0)

    def write(end: float, place: float, words: str, style: str = "normal") -> None:
        at = (end + 0.015 * longest, place)
        axes.text(*at, words, va="center", fontsize=FONT_SIZE - 1, style=style, color=palette.ink)

    for k, label in enumerate(labels):
        colour = (palette.clean, palette.adversarial)[k]
        for at, pair in enumerate(pairs):
            place, bar = at + (k - 0.5) * BAR_HEIGHT, pair.pair[k]
            if bar is not None:
                axes.barh(
                    place, bar.value, BAR_HEIGHT, facecolor=palette.faint if k else colour, edgecolor=colour,
                    hatch=HATCHES[k], label=label, ecolor=palette.ink, capsize=3,
                    xerr=[[bar.value - bar.low], [bar.high - bar.value]] if bar.low < bar.high else None,
                )  # fmt: skip
                write(bar.high, place, f"{bar.value:.1f}")
            elif pair.pair == (None, None):
                write(0, at, pair.absent if k else "", "italic")
            else:
                write(0, place, pair.absent, "italic")
    axes.set_yticks(range(len(pairs)), [pair.name for pair in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * longest)
    if not axes.patches:
        axes.set_xticks([])
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one for each label
    if handles:
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 2}
        add_legend(axes, palette, handles=[*handles.values()], **below)
