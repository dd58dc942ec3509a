"""Figure 7: seconds of a training epoch, a panel for each network and a bar for each method."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.paper.figure_data import NETWORKS, BenchTiming, FigureData, comparable, name_of, seconds
from soap.report.drawing import FONT_SIZE, LIGHT, panel_row, set_titles

BAR_HEIGHT = 0.62


def draw_training_time(data: FigureData) -> Figure:
    """The mean of the timed epochs, with its standard deviation as a whisker."""
    figure, panels = panel_row(len(NETWORKS), width=5.4, height=2.6, rows=2)
    for axes, (title, models) in zip(panels, NETWORKS.items(), strict=True):
        timings = comparable(data.timings, models)
        set_titles(axes, title, "seconds an epoch" if timings else "", note=_note([*timings.values()]))
        longest = max((seconds(row)["mean"] + seconds(row)["deviation"] for row in timings.values()), default=1.0)
        for at, model in enumerate(models):
            if model in timings:
                _draw_bar(axes, at, model, timings[model], gap=0.015 * longest)
            else:
                axes.text(0, at, f"no timing of {model} yet", va="center", fontsize=FONT_SIZE - 1, style="italic")
        axes.set_yticks(range(len(models)), [name_of(model).method for model in models])
        axes.set_ylim(len(models) - 0.4, -0.6)
        axes.set_xlim(0, 1.15 * longest)
        if not timings:
            axes.set_xticks([])
    return figure


def _draw_bar(axes: Axes, at: int, model: str, timing: BenchTiming, gap: float) -> None:
    mean, deviation = seconds(timing)["mean"], seconds(timing)["deviation"]
    own = name_of(model).method.startswith("SOAP")
    colour, edge = (LIGHT.purified, LIGHT.purified) if own else (LIGHT.faint, LIGHT.ink)
    axes.barh(
        at,
        mean,
        BAR_HEIGHT,
        xerr=deviation or None,
        color=colour,
        edgecolor=edge,
        ecolor=LIGHT.ink,
        capsize=3,
        zorder=2,
    )
    axes.text(mean + deviation + gap, at, f"{mean:.2f} s", va="center", fontsize=FONT_SIZE - 1, color=LIGHT.ink)


def _note(timings: Sequence[BenchTiming]) -> str:
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
