"""Seconds of a training epoch by method, on small and large networks (Figure 7)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.epoch_times import (
    NETWORKS,
    BenchTiming,
    comparable,
    deviation,
    recipes_of,
    seconds,
    seconds_spread,
)
from soap.paper.figure_data import FigureData
from soap.paper.model_names import data_of, method_of, network_of
from soap.report.drawing import Palette
from soap.report.panels import FONT_SIZE, panel_row, set_titles


def draw(data: FigureData, palette: Palette) -> Figure:
    """A panel a network, a bar a method; a method without a timing has a message instead of its bar."""
    figure, panels = panel_row(len(NETWORKS), palette, width=5.4, height=2.6, rows=2)
    for axes, network in zip(panels, NETWORKS, strict=True):
        models = recipes_of(network)
        _draw_network(axes, models, comparable(data.timings, models), palette)
    return figure


def _draw_network(axes: Axes, models: Sequence[str], timings: Mapping[str, BenchTiming], palette: Palette) -> None:
    title = f"{network_of(models[0])}, {data_of(models[0])}"
    set_titles(axes, palette, title, "seconds an epoch" if timings else "", note=_note(list(timings.values())))
    axes.set_yticks(range(len(models)), [method_of(model) for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    longest = max((seconds(row) + deviation(row) for row in timings.values()), default=1.0)
    axes.set_xlim(0, 1.2 * longest)
    for place, model in enumerate(models):
        if model in timings:
            end, words, style = _bar(axes, place, timings[model], palette), f"{seconds(timings[model]):.2f} s", "normal"
        else:
            end, words, style = 0.0, f"no timing of {model} yet", "italic"
        axes.text(
            end + 0.015 * longest, place, words, va="center", fontsize=FONT_SIZE - 1, color=palette.ink,
            style=style,
        )  # fmt: skip
    if not timings:
        axes.set_xticks([])


def _bar(axes: Axes, place: int, timing: BenchTiming, palette: Palette) -> float:
    """Draw the bar with its standard deviation as a whisker; returns the end of both."""
    own = timing["model"].rsplit("-", 1)[1] in ("dr", "rp", "lc")
    whisker = deviation(timing)
    axes.barh(
        place, seconds(timing), height=0.62, color=palette.purified if own else palette.faint,
        edgecolor=palette.purified if own else palette.ink, xerr=whisker or None, ecolor=palette.ink, capsize=3,
    )  # fmt: skip
    return seconds(timing) + whisker


def _note(timings: Sequence[BenchTiming]) -> str:
    """Machine and training options of all timings, and the number of timed epochs."""
    if not timings:
        return ""
    one = timings[0]
    compiled = ["compiled"] if one["case"]["compiled"] == "true" else []
    way = ", ".join([one["provenance"]["device"], one["case"]["precision"], *compiled])
    measure = "mean" if "mean" in seconds_spread(one) else "median"
    epochs = _range_text([seconds_spread(row)["repeats"] for row in timings])
    steps = [row["case"]["steps"] for row in timings if row["case"]["steps"] != row["case"]["epoch_steps"]]
    some = "" if len(steps) == len(timings) else "some "
    shortened = [f"{some}of {_range_text(steps)} steps, scaled"] if steps else []
    return "\n".join([way, f"{measure} of {epochs} epoch{'' if epochs == '1' else 's'}", *shortened])


def _range_text(numbers: Sequence[float]) -> str:
    """ "30", or "3 to 30" if they differ."""
    least, most = min(numbers), max(numbers)
    return f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"
