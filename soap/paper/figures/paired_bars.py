"""Two bars for each of several cases, one above the other: two ablations are drawn so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from soap.report.drawing import Palette
from soap.report.paper_figures import panels
from soap.results import Row

HEIGHT = 0.38
HATCHES = ("", "////")
"""Bars differ in hatching as well as colour."""


@dataclass(frozen=True)
class Bar:
    """A value, and where its 95 % interval ends (the value itself where there is none)."""

    value: float
    low: float
    high: float


def share(row: Row | None) -> Bar | None:
    """Accuracy in per cent; None where there is no row."""
    return None if row is None else Bar(100 * row.accuracy, *(100 * bound for bound in row.interval))


@dataclass(frozen=True)
class Case:
    """Two bars under one name, and what to say where one or both are missing."""

    name: str
    pair: tuple[Bar | None, Bar | None]
    absent: str


def draw_pairs(axes: Axes, cases: Sequence[Case], labels: tuple[str, str], palette: Palette) -> None:
    """Horizontal bars, each with its value behind it; the first case on top."""
    longest = max((bar.high for case in cases for bar in case.pair if bar is not None), default=1.0)

    def write(end: float, place: float, words: str, style: str = "normal") -> None:
        at = (end + 0.015 * longest, place)
        axes.text(*at, words, va="center", fontsize=panels.LETTERS - 1, style=style, color=palette.ink)

    for k, label in enumerate(labels):
        colour = (palette.clean, palette.adversarial)[k]
        for at, case in enumerate(cases):
            place, bar = at + (k - 0.5) * HEIGHT, case.pair[k]
            if bar is not None:
                axes.barh(
                    place, bar.value, HEIGHT, facecolor=palette.faint if k else colour, edgecolor=colour,
                    hatch=HATCHES[k], label=label, ecolor=palette.ink, capsize=3,
                    xerr=[[bar.value - bar.low], [bar.high - bar.value]] if bar.low < bar.high else None,
                )  # fmt: skip
                write(bar.high, place, f"{bar.value:.1f}")
            elif case.pair == (None, None):
                write(0, at, case.absent if k else "", "italic")
            else:
                write(0, place, case.absent, "italic")
    axes.set_yticks(range(len(cases)), [case.name for case in cases])
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * longest)
    if not axes.patches:
        axes.set_xticks([])
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one for each label
    if handles:
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 2}
        panels.legend(axes, palette, handles=[*handles.values()], **below)
