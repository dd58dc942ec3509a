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

Timing = Mapping[str, Any]
"""A row of `soap bench train`."""


def draw(material: Material, palette: Palette) -> Figure:
    """A panel a network, a bar a method; a method that was not timed says so in place of its bar."""
    figure, axes = panels.side_by_side(len(NETWORKS), palette, width=5.4, height=2.6, rows=2)
    for panel, (network, methods) in zip(axes, NETWORKS.items(), strict=True):
        models = [f"{network}-{method}" for method in methods]
        _draw_network(panel, models, comparable(material.timings, models), palette)
    return figure


def comparable(timings: Sequence[Timing], models: Sequence[str]) -> dict[str, Timing]:
    """A timing of each model, all from one machine and one way to train.

    Timings with a mean are taken, and older ones without it only where there is none with. Of the ways it is the one
    that has most methods, then most epochs, then the latest; of a model's timings the one of most epochs, then the
    latest.
    """
    own = [row for row in timings if row["what"] == "train" and row["model"] in models]
    ways: dict[tuple[Any, ...], dict[str, Timing]] = {}
    for row in sorted([row for row in own if "mean" in _seconds(row)] or own, key=_standing):
        ways.setdefault(_way(row), {})[row["model"]] = row
    return max(ways.values(), key=_merit, default={})


def seconds(timing: Timing) -> float:
    """An epoch's: the mean of those that were timed; the median where the row has no mean."""
    spread = _seconds(timing)
    return float(spread.get("mean", spread["median"]))


def _seconds(timing: Timing) -> Mapping[str, float]:
    return timing["paths"]["ours"]["seconds"]  # type: ignore[no-any-return]


def _deviation(timing: Timing) -> float:
    return _seconds(timing).get("deviation", 0.0)


def _standing(timing: Timing) -> tuple[float, str]:
    return _seconds(timing)["repeats"], timing["provenance"]["date"]


def _way(timing: Timing) -> tuple[Any, ...]:
    """What must be the same for seconds to be compared: the machine, and how it was told to train."""
    place, case = timing["provenance"], timing["case"]
    return place["device"], place["processor"], case["precision"], case["compiled"], case["batch"]


def _merit(kept: Mapping[str, Timing]) -> tuple[int, float, str]:
    repeats, dates = zip(*map(_standing, kept.values()), strict=True)
    return len(kept), sum(repeats), max(dates)


def _draw_network(axes: Axes, models: Sequence[str], timings: Mapping[str, Timing], palette: Palette) -> None:
    title = f"{panels.network_of(models[0])}, {panels.data_of(models[0])}"
    panels.head(axes, palette, title, "seconds an epoch" if timings else "", note=_how(list(timings.values())))
    axes.set_yticks(range(len(models)), [panels.method_of(model) for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    longest = max((seconds(row) + _deviation(row) for row in timings.values()), default=1.0)
    axes.set_xlim(0, 1.2 * longest)
    for place, model in enumerate(models):
        if model in timings:
            end, words, style = _bar(axes, place, timings[model], palette), f"{seconds(timings[model]):.2f} s", "normal"
        else:
            end, words, style = 0.0, f"no timing of {model} yet", "italic"
        axes.text(
            end + 0.015 * longest, place, words, va="center", fontsize=panels.LETTERS - 1, color=palette.ink,
            style=style,
        )  # fmt: skip
    if not timings:
        axes.set_xticks([])


def _bar(axes: Axes, place: int, timing: Timing, palette: Palette) -> float:
    """The bar, and its deviation as a whisker where it has one; where both end."""
    own = timing["model"].rsplit("-", 1)[1] in ("dr", "rp", "lc")
    whisker = _deviation(timing)
    axes.barh(
        place, seconds(timing), height=0.62, color=palette.purified if own else palette.faint,
        edgecolor=palette.purified if own else palette.ink, xerr=whisker or None, ecolor=palette.ink, capsize=3,
    )  # fmt: skip
    return seconds(timing) + whisker


def _how(timings: Sequence[Timing]) -> str:
    """The machine and the way to train that all timings share, and below it how many epochs were timed."""
    if not timings:
        return ""
    one = timings[0]
    compiled = ["compiled"] if one["case"]["compiled"] == "true" else []
    way = ", ".join([one["provenance"]["device"], one["case"]["precision"], *compiled])
    measure = "mean" if "mean" in _seconds(one) else "median"
    epochs = _range([_seconds(row)["repeats"] for row in timings])
    steps = [row["case"]["steps"] for row in timings if row["case"]["steps"] != row["case"]["epoch_steps"]]
    some = "" if len(steps) == len(timings) else "some "
    shortened = [f"{some}of {_range(steps)} steps, scaled"] if steps else []
    return "\n".join([way, f"{measure} of {epochs} epoch{'' if epochs == '1' else 's'}", *shortened])


def _range(numbers: Sequence[float]) -> str:
    """ "30", or "3 to 30" where they differ."""
    least, most = min(numbers), max(numbers)
    return f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"
