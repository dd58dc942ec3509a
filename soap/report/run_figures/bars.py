"""Bars of accuracy by protocol: the defence, and the bare classifier on the same points."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary import ProtocolResult
from soap.report.drawing import Palette
from soap.report.panels import PAGE_FONT_SIZE, page_axes
from soap.report.run_words import shown_lines
from soap.results import wilson

BAR_HEIGHT = 0.36


def draw_bars(report: SuiteReport, palette: Palette) -> Figure:
    """Horizontal bars in per cent with 95 % intervals: clean first, the worst case last, unless it is void."""
    summary, lines = report.summary, shown_lines(report)
    apart = bool(summary.plan["purifies"]) and summary.worst.bare is not None
    figure, axes = page_axes(palette, 6.2, 0.9 + (0.62 if apart else 0.42) * len(lines), "correctly classified, %")
    for place, line in enumerate(lines):
        shift = BAR_HEIGHT / 2 if apart else 0.0
        pairs = [(line.correct, palette.purified, "", place - shift)]
        if apart and line.bare is not None:
            pairs.append((int(line.bare.sum()), palette.adversarial, "////", place + shift))
        for correct, colour, hatch, at in pairs:
            _bar(axes, line, correct, colour, hatch, at, palette)
    axes.set_yticks(range(len(lines)), [line.protocol for line in lines])
    if lines[-1] is summary.worst:
        axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    if apart:
        keys = [
            Patch(facecolor=palette.purified, label="with the defence"),
            Patch(facecolor=palette.paper, edgecolor=palette.adversarial, hatch="////", label="classifier alone"),
        ]
        figure.legend(handles=keys, loc="outside upper center", ncols=2, frameon=False, fontsize=PAGE_FONT_SIZE,
                      labelcolor=palette.ink)  # fmt: skip
    return figure


def _bar(axes: Axes, line: ProtocolResult, correct: int, colour: str, hatch: str, at: float, palette: Palette) -> None:
    share, (low, high) = 100 * correct / line.n, (100 * bound for bound in wilson(correct, line.n))
    axes.barh(
        at,
        share,
        BAR_HEIGHT,
        facecolor=palette.paper if hatch else colour,
        edgecolor=colour,
        hatch=hatch,
        linewidth=1.2,
    )
    axes.errorbar(share, at, xerr=[[max(0.0, share - low)], [max(0.0, high - share)]], color=palette.ink, capsize=3)
    axes.text(high + 1.2, at, f"{share:.1f}", va="center", fontsize=PAGE_FONT_SIZE - 1, color=palette.ink)
