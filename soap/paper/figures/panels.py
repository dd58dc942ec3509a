"""What the panels of all figures share: axes, letters, names, and the words where there is nothing to draw."""

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap.report.drawing import Palette
from soap.results import Row

LETTERS = 11  # points
NETWORKS = {"fcn": "FCN", "cnn": "CNN", "resnet18": "ResNet-18", "wide-resnet28": "Wide-ResNet-28"}
METHODS = {
    "no-def": "No Def", "fgsm-at": "FGSM AT", "pgd-at": "PGD AT", "dr": "SOAP-DR", "rp": "SOAP-RP", "lc": "SOAP-LC",
}  # fmt: skip
TASKS = ("mnist-fcn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc")
"""One model a task, in the order of the paper's panels."""


def network_of(model: str) -> str:
    """ "cifar10-resnet18-lc" -> "ResNet-18"."""
    return NETWORKS[model.removeprefix(f"{model.split('-')[0]}-").removesuffix(f"-{_method(model)}")]


def method_of(model: str) -> str:
    """ "cifar10-resnet18-lc" -> "SOAP-LC"."""
    return METHODS[_method(model)]


def data_of(model: str) -> str:
    """ "cifar10-resnet18-lc" -> "CIFAR-10"."""
    return "MNIST" if model.startswith("mnist") else "CIFAR-10"


def _method(model: str) -> str:
    return next(method for method in METHODS if model.endswith(f"-{method}"))


def side_by_side(
    count: int, palette: Palette, *, width: float = 3.5, height: float = 3.2, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure with plain panels in a row (or several), `width` x `height` inches each."""
    columns = -(-count // rows)
    figure = Figure(figsize=(width * columns, height * rows), facecolor=palette.paper, layout="constrained")
    return figure, [_plain(figure.add_subplot(rows, columns, k + 1), palette) for k in range(count)]


def _plain(axes: Axes, palette: Palette) -> Axes:
    axes.set_facecolor(palette.paper)
    axes.tick_params(labelsize=LETTERS - 1, colors=palette.ink)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(palette.ink)
    return axes


def head(axes: Axes, palette: Palette, title: str, x_label: str = "", y_label: str = "", note: str = "") -> None:
    """Title and labels of a panel; the note, in small letters, stands at the end of the title's line."""
    axes.set_title(title, fontsize=LETTERS + 1, color=palette.ink, fontweight="bold", loc="left")
    axes.set_title(note, fontsize=LETTERS - 3, color=palette.ink, loc="right")
    axes.set_xlabel(x_label, fontsize=LETTERS, color=palette.ink)
    axes.set_ylabel(y_label, fontsize=LETTERS, color=palette.ink)


def say(axes: Axes, palette: Palette, words: str) -> None:
    """Words in the middle of a panel that has nothing to draw."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=palette.faint, linestyle=(0, (3, 3)))
    axes.text(
        0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=LETTERS, color=palette.ink,
        style="italic",
    )  # fmt: skip


def legend(axes: Axes, palette: Palette, **place: Any) -> None:
    """The panel's legend; what it covers shines through a little."""
    look: dict[str, Any] = {"facecolor": palette.paper, "edgecolor": "none", "framealpha": 0.85}
    axes.legend(fontsize=LETTERS - 2, labelcolor=palette.ink, **look, **place)


def shares(rows: Sequence[Row]) -> tuple[list[float], list[list[float]]]:
    """Accuracies in per cent, and how far their 95 % intervals reach below and above them."""
    values = [100 * row.accuracy for row in rows]
    ends = [[abs(100 * row.interval[k] - value) for row, value in zip(rows, values, strict=True)] for k in (0, 1)]
    return values, ends


def attack_radius(row: Row) -> float:
    """The radius of the attack that a row was measured under."""
    found = re.search(r"\beps=([\d.e-]+)", row.settings)
    return float(found[1]) if found else 0.0
