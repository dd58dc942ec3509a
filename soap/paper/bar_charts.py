"""Bar charts: training time (Figure 7), label leaking (section 4.1), rotation losses (3.4), gradients of SOAP-LC."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.figure_data import FIGURES, NETWORKS, BenchTiming, FigureData, comparable, name_of, seconds
from soap.paper.rows import attack_radius
from soap.paper.sweeps import CROSS_ENTROPY, GRADIENT_ATTACKS
from soap.report.drawing import FONT_SIZE, LIGHT, add_legend, panel_row, set_titles, show_message
from soap.results import Row

ROTATION_LOSSES = ("squared error", CROSS_ENTROPY)
ROTATION_ATTACKS = {"none": "clean\nimages", "pgd": "under\nPGD"}

GRADIENT_LABELS = {
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
NOT_MEASURED = "not measured yet"


@dataclass(frozen=True)
class Bar:
    """A value, the ends of its whisker (the value itself without one), the text behind it, and matplotlib's style."""

    value: float
    low: float
    high: float
    text: str
    look: dict[str, Any] = field(default_factory=dict)


def draw_groups(
    axes: Axes,
    names: Sequence[str],
    groups: Sequence[Sequence[Bar | str]],
    *,
    font_size: float = FONT_SIZE - 1,
    legend_at: tuple[float, float] = (0.5, -0.18),
) -> None:
    """Groups of bars, the first on top; a text stands in place of a missing bar, or of a whole missing group."""
    bars = [bar for group in groups for bar in group if isinstance(bar, Bar)]
    longest = max((bar.high for bar in bars), default=1.0)
    height = min(0.62, 0.76 / len(groups[0]))

    def write(end: float, place: float, words: str, style: str = "normal") -> None:
        at = (end + 0.015 * longest, place)
        axes.text(*at, words, va="center", fontsize=font_size, style=style, color=LIGHT.ink)

    for at, group in enumerate(groups):
        if all(isinstance(bar, str) for bar in group):
            write(0, at, str(group[0]), "italic")
            continue
        for k, bar in enumerate(group):
            place = at + (k - (len(group) - 1) / 2) * height
            if isinstance(bar, str):
                write(0, place, bar, "italic")
                continue
            whisker = [[bar.value - bar.low], [bar.high - bar.value]] if bar.low < bar.high else None
            axes.barh(place, bar.value, height, xerr=whisker, ecolor=LIGHT.ink, capsize=3, zorder=2, **bar.look)
            write(bar.high, place, bar.text)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * longest)
    if not bars:
        axes.set_xticks([])
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one for each label
    if handles:
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": legend_at, "ncols": len(handles)}
        add_legend(axes, handles=[*handles.values()], **below)


def _accuracy(row: Row | None, look: dict[str, Any], absent: str = NOT_MEASURED) -> Bar | str:
    if row is None:
        return absent
    value, (low, high) = 100 * row.accuracy, row.interval
    return Bar(value, 100 * low, 100 * high, f"{value:.1f}", look)


def _looks(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Clean images, and hatched, so that bars differ in more than colour; a third is solid again."""
    looks: list[dict[str, Any]] = [
        {"facecolor": LIGHT.clean, "edgecolor": LIGHT.clean},
        {"facecolor": LIGHT.faint, "edgecolor": LIGHT.adversarial, "hatch": "////"},
        {"facecolor": LIGHT.adversarial, "edgecolor": LIGHT.adversarial},
    ]
    return [{**look, "label": label} for look, label in zip(looks, labels, strict=False)]


def draw_label_leaking(data: FigureData) -> Figure:
    """A pair of bars a network: clean images and under FGSM; a longer second bar means that labels leak."""
    figure, (axes,) = panel_row(1, width=7.5, height=4.2)
    models = FIGURES["ablation-leaking"].models
    looks = dict(zip(("none", "fgsm"), _looks(("clean images", "under FGSM")), strict=True))
    groups = []
    for model in models:
        rows, absent = data.get("leaking", model), f"no rows of {model} clean and under FGSM yet"
        groups.append([_accuracy(rows.get(attack), look, absent) for attack, look in looks.items()])
    set_titles(axes, "Networks trained on FGSM examples", "accuracy, %")
    draw_groups(axes, [f"{name_of(model).network}\n{name_of(model).data}" for model in models], groups)
    return figure


def draw_rotation_losses(data: FigureData) -> Figure:
    """Left: accuracy of SOAP-RP by purification loss; right: the mean chosen radius, with the attack's marked."""
    (model,) = FIGURES["ablation-rotation"].models
    rows: dict[tuple[str, str], Row] = data.get("rotation", model)
    figure, (accuracy, radius) = panel_row(2, width=4.9, height=3.1)
    if not any(loss == CROSS_ENTROPY for _, loss in rows):
        for axes in (accuracy, radius):
            show_message(axes, name_of(model).title, f"no rows of {model}\npurified by either loss yet")
        return figure
    looks = dict(zip(ROTATION_LOSSES, _looks(ROTATION_LOSSES), strict=True))
    note = f"{next(iter(rows.values())).n:,} images"
    for axes, x_label, bar in (
        (accuracy, "accuracy, %", _accuracy),
        (radius, "mean radius $\\epsilon_{pfy}$, in 255ths (dotted: attack's)", _radius),
    ):
        set_titles(axes, name_of(model).title, x_label, note=note)
        groups = [[bar(rows.get((key, loss)), look) for loss, look in looks.items()] for key in ROTATION_ATTACKS]
        draw_groups(axes, [*ROTATION_ATTACKS.values()], groups)
    attacked = [row for (attack, _), row in rows.items() if attack == "pgd"]
    if attacked:
        radius.axvline(255 * attack_radius(attacked[0]), color=LIGHT.ink, linestyle=(0, (1, 2)), linewidth=1.6)
    return figure


def _radius(row: Row | None, look: dict[str, Any]) -> Bar | str:
    if row is None:
        return NOT_MEASURED
    mean = 255 * row.measures["mean_eps_pfy"]
    return Bar(mean, mean, mean, f"{mean:.1f}", look)


def draw_gradients(data: FigureData) -> Figure:
    """Three bars a gradient: clean images, under FGSM, under PGD; our own choice has a grey background."""
    (model,) = FIGURES["ablation-gradients"].models
    rows: dict[tuple[str, str], Row] = data.get("gradients", model)
    figure, (axes,) = panel_row(1, width=7.5, height=6.6)
    if not rows:
        show_message(axes, name_of(model).title, f"no rows of {model}\nby the gradient of the purification loss yet")
        return figure
    set_titles(axes, name_of(model).title, "accuracy, %", note=f"{next(iter(rows.values())).n:,} images")
    labels = ("clean images", "under FGSM", "under PGD")
    looks = dict(zip(GRADIENT_ATTACKS, _looks(labels), strict=True))
    groups = [[_accuracy(rows.get((attack, name)), look) for attack, look in looks.items()] for name in GRADIENT_LABELS]
    names = [*GRADIENT_LABELS.values()]
    draw_groups(axes, names, groups, font_size=FONT_SIZE - 2, legend_at=(0.4, -0.09))
    ours = [*GRADIENT_LABELS].index(OUR_VARIANT)
    axes.axhspan(ours - 0.5, ours + 0.5, color=LIGHT.faint, alpha=0.45, linewidth=0, zorder=0)
    axes.get_yticklabels()[ours].set_fontweight("bold")
    return figure


def draw_training_time(data: FigureData) -> Figure:
    """A panel a network, a bar a method with its standard deviation as a whisker."""
    figure, panels = panel_row(len(NETWORKS), width=5.4, height=2.6, rows=2)
    for axes, (title, models) in zip(panels, NETWORKS.items(), strict=True):
        timings = comparable(data.timings, models)
        note = _timing_note([*timings.values()])
        set_titles(axes, title, "seconds an epoch" if timings else "", note=note)
        groups = [[_timing_bar(model, timings.get(model))] for model in models]
        draw_groups(axes, [name_of(model).method for model in models], groups)
    return figure


def _timing_bar(model: str, timing: BenchTiming | None) -> Bar | str:
    if timing is None:
        return f"no timing of {model} yet"
    own, mean, spread = name_of(model).method.startswith("SOAP"), seconds(timing)["mean"], seconds(timing)["deviation"]
    look = {"color": LIGHT.purified if own else LIGHT.faint, "edgecolor": LIGHT.purified if own else LIGHT.ink}
    return Bar(mean, mean - spread, mean + spread, f"{mean:.2f} s", look)


def _timing_note(timings: Sequence[BenchTiming]) -> str:
    """Machine and training options of all timings, and the number of timed epochs."""
    if not timings:
        return ""
    one = timings[0]
    compiled = ["compiled"] if one["case"]["compiled"] == "true" else []
    way = ", ".join([one["provenance"]["device"], one["case"]["precision"], *compiled])
    epochs = _range_text([seconds(row)["repeats"] for row in timings])
    steps = [row["case"]["steps"] for row in timings if row["case"]["steps"] != row["case"]["epoch_steps"]]
    some = "" if len(steps) == len(timings) else "some "
    shortened = [f"{some}of {_range_text(steps)} steps, scaled"] if steps else []
    return "\n".join([way, f"mean of {epochs} epoch{'' if epochs == '1' else 's'}", *shortened])


def _range_text(numbers: Sequence[float]) -> str:
    """ "30", or "3 to 30" if they differ."""
    least, most = min(numbers), max(numbers)
    return f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"
