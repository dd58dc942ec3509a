"""Seconds an epoch takes with every method, on small and large networks (Figure 7)."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.evaluation.gathered import Material
from soap.report.drawing import Palette
from soap.report.paper_figures import panels

NETWORKS = {
    "mnist-fcn": ("no-def", "fgsm-at", "pgd-at", "dr"),
    "mnist-cnn": ("no-def", "fgsm-at", "pgd-at", "dr"),
    "cifar10-resnet18": ("no-def", "fgsm-at", "pgd-at", "rp", "lc"),
    "cifar10-wide-resnet28": ("no-def", "fgsm-at", "pgd-at", "rp", "lc"),
}
CASE = ("precision", "compiled", "batch")

Timing = Mapping[str, Any]


def draw(material: Material, palette: Palette) -> Figure:
    """A panel a network, a bar a method; a method that was not timed says so in place of its bar."""
    figure, axes = panels.side_by_side(len(NETWORKS), palette, width=5.4, height=2.6, rows=2)
    for panel, (network, methods) in zip(axes, NETWORKS.items(), strict=True):
        models = [f"{network}-{method}" for method in methods]
        _draw_network(panel, models, comparable(material.timings, models), palette)
    return figure


def comparable(timings: Sequence[Timing], models: Sequence[str]) -> dict[str, Timing]:
    """The latest timing of each model, all from one machine and one way to train: the way that has most methods."""
    ways: dict[tuple[Any, ...], dict[str, Timing]] = {}
    for row in timings:
        if row["what"] == "train" and row["model"] in models:
            way = (row["provenance"]["device"], *(row["case"].get(key) for key in CASE))
            kept = ways.setdefault(way, {})
            if row["model"] not in kept or kept[row["model"]]["provenance"]["date"] <= row["provenance"]["date"]:
                kept[row["model"]] = row
    return max(
        ways.values(),
        key=lambda kept: (len(kept), max(row["provenance"]["date"] for row in kept.values())),
        default={},
    )


def seconds(timing: Timing) -> float:
    """An epoch's, the median of the epochs that were timed."""
    return float(timing["paths"]["ours"]["seconds"]["median"])


def _draw_network(axes: Axes, models: Sequence[str], timings: Mapping[str, Timing], palette: Palette) -> None:
    title = f"{panels.network_of(models[0])}, {panels.data_of(models[0])}"
    panels.head(axes, palette, title, "seconds an epoch" if timings else "", note=_how(timings))
    axes.set_yticks(range(len(models)), [panels.method_of(model) for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    longest = max((seconds(row) for row in timings.values()), default=1.0)
    axes.set_xlim(0, 1.2 * longest)
    for place, model in enumerate(models):
        if model in timings:
            length = seconds(timings[model])
            own = model.rsplit("-", 1)[1] in ("dr", "rp", "lc")
            axes.barh(
                place, length, height=0.62, color=palette.purified if own else palette.faint,
                edgecolor=palette.purified if own else palette.ink,
            )  # fmt: skip
        else:
            length = 0.0
        words = f"{length:.2f} s" if model in timings else f"no timing of {model} yet"
        style = "normal" if model in timings else "italic"
        axes.text(
            length + 0.015 * longest, place, words, va="center", fontsize=panels.LETTERS - 1, color=palette.ink,
            style=style,
        )  # fmt: skip
    if not timings:
        axes.set_xticks([])


def _how(timings: Mapping[str, Timing]) -> str:
    """The machine and the way to train that all timings share."""
    if not timings:
        return ""
    one = next(iter(timings.values()))
    compiled = ["compiled"] if one["case"].get("compiled") == "true" else []
    return ", ".join([str(one["provenance"]["device"]), str(one["case"].get("precision")), *compiled])
