"""Figures of the page of a run: accuracy by protocol and by radius, loss by step, images that broke the defence."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from soap.errors import FileError
from soap.evaluation.checks import best_iterate, radii
from soap.evaluation.checks.check import Measurement, Record
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.suite import SuiteReport
from soap.evaluation.summary import ProtocolResult
from soap.evaluation.summary_builder import BrokenImage
from soap.report.drawing import LIGHT, PAGE_FONT_SIZE, page_axes
from soap.report.run_text import protocol_lines
from soap.results import wilson

BAR_HEIGHT = 0.36


def draw_bars(report: SuiteReport) -> Figure:
    """Horizontal bars in per cent, 95 % intervals: clean first, worst case last; clean alone after a failed check."""
    summary = report.summary
    lines = [line for line in protocol_lines(report) if report.verdict.shows(line.protocol)]
    own = summary.classifier_worst if summary.plan["purifies"] else None
    apart = own is not None and lines[-1] is summary.worst
    names = [line.protocol for line in lines] + (["classifier alone"] if apart else [])
    figure, axes = page_axes(6.2, 0.9 + 0.42 * len(names), "correctly classified, %")
    for place, line in enumerate(lines):
        _bar(axes, line, float(line.values.sum()), LIGHT.purified, "", place)
    if apart and own is not None:
        _bar(axes, summary.worst, int(own.sum()), LIGHT.adversarial, "////", len(lines))
    axes.set_yticks(range(len(names)), names)
    if lines[-1] is summary.worst:
        axes.get_yticklabels()[len(lines) - 1].set_fontweight("bold")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    if apart:
        keys = [
            Patch(facecolor=LIGHT.purified, label="with the defence"),
            Patch(
                facecolor=LIGHT.paper,
                edgecolor=LIGHT.adversarial,
                hatch="////",
                label="classifier alone, its own worst case",
            ),
        ]
        figure.legend(handles=keys, loc="outside upper center", ncols=2, frameon=False, fontsize=PAGE_FONT_SIZE,
                      labelcolor=LIGHT.ink)  # fmt: skip
    return figure


def _bar(axes: Axes, line: ProtocolResult, correct: float, colour: str, hatch: str, at: float) -> None:
    share, (low, high) = 100 * correct / line.n, (100 * bound for bound in wilson(correct, line.n))
    axes.barh(
        at, share, BAR_HEIGHT, facecolor=LIGHT.paper if hatch else colour, edgecolor=colour, hatch=hatch, linewidth=1.2
    )
    axes.errorbar(share, at, xerr=[[max(0.0, share - low)], [max(0.0, high - share)]], color=LIGHT.ink, capsize=3)
    axes.text(high + 1.2, at, f"{share:.1f}", va="center", fontsize=PAGE_FONT_SIZE - 1, color=LIGHT.ink)


MAX_DRAWN_RATIO = 2.5
"""Radii up to so many times the threat's are drawn; larger ones are in the caption."""


@dataclass(frozen=True, kw_only=True)
class CaptionedFigure:
    """A figure, its alternative text, and its caption."""

    figure: Figure
    alt: str
    caption: str


def radii_figure(folder: RunFolder) -> CaptionedFigure | None:
    """Accuracy against the radius of the strongest attack, 95 % intervals; None if it was not measured or failed."""
    curve = _record(folder, radii.MEASUREMENT, ("eps", "accuracy"))
    if curve is None:
        return None
    figure, axes = page_axes(5, 3.4, "radius of the attack", "correctly classified, %")
    threat = float(folder.plan()["threat"]["eps"])
    points = [*zip(curve.eps, curve.accuracy, strict=True)]
    near = [(eps, share) for eps, share in points if eps <= MAX_DRAWN_RATIO * threat]
    places, shares = zip(*near, strict=True)
    low, high = zip(*(wilson(round(share * curve.images), curve.images) for share in shares), strict=True)
    lower, upper, percent = (100 * np.array(values) for values in (low, high, shares))
    axes.fill_between(places, lower, upper, color=LIGHT.purified, alpha=0.25, linewidth=0)
    axes.plot(places, percent, color=LIGHT.purified, marker="o", linewidth=2)
    axes.axvline(threat, color=LIGHT.ink, linestyle=(0, (2, 2)), linewidth=1.2)
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    caption = (
        f"The strongest attack at other radii, on {curve.images} images that are correctly classified when clean; "
        "the run's radius is dotted. A sound attack breaks more images at a larger radius."
    )
    caption += "".join(f" At radius {eps:.3g}: {100 * share:.1f} %." for eps, share in points[len(near) :])
    alt = "Accuracy by radius: " + "; ".join(f"{eps:.3g}: {100 * share:.1f} %" for eps, share in points)
    return CaptionedFigure(figure=figure, alt=alt, caption=caption)


def losses_figure(folder: RunFolder) -> CaptionedFigure | None:
    """Mean loss and images not broken by step, each with its own scale; None if it was not measured or failed."""
    curve = _record(folder, best_iterate.LOSS_CURVE, ("loss", "standing"))
    if curve is None:
        return None
    figure, axes = page_axes(5, 3.4, "step of the attack", "mean loss")
    last, standing = len(curve.loss) - 1, [100 * share for share in curve.standing]
    axes.plot(range(last + 1), curve.loss, color=LIGHT.adversarial, linewidth=2)
    axes.set_xlim(0, max(1, last))
    axes.yaxis.label.set_color(LIGHT.adversarial)
    other = axes.twinx()
    other.plot(range(last + 1), standing, color=LIGHT.purified, linewidth=2, linestyle="--")
    other.set_ylim(0, 102)
    other.set_ylabel("images not broken, % (dashed)", fontsize=PAGE_FONT_SIZE, color=LIGHT.purified)
    other.tick_params(labelsize=PAGE_FONT_SIZE, colors=LIGHT.ink)
    for name, spine in other.spines.items():
        spine.set_visible(name == "right")
        spine.set_color(LIGHT.ink)
    alt = (
        f"Mean loss from {curve.loss[0]:.3g} to {curve.loss[-1]:.3g} and images not broken from "
        f"{standing[0]:.1f} % to {standing[-1]:.1f} % in {last} steps."
    )
    caption = f"Step by step: {curve.attack}. Where the curves still move at the end, more steps would break more."
    return CaptionedFigure(figure=figure, alt=alt, caption=caption)


def _record(folder: RunFolder, measurement: Measurement[Record], curves: tuple[str, str]) -> Record | None:
    """The record of a measurement; FileError unless its two curves have the same length, above 0."""
    fact = folder.read_fact(measurement.fact)
    if fact is None or "problem" in fact:
        return None
    try:
        record = measurement.read(fact)
        lengths = {len(getattr(record, name)) for name in curves}
        if len(lengths) > 1 or 0 in lengths or getattr(record, "images", 1) < 1:
            raise ValueError(f"its curves {curves} are empty or differ in length, or it has no images")
    except (TypeError, ValueError) as problem:
        path = folder.path / "facts" / f"{measurement.fact}.json"
        raise FileError(f"{path}: {problem}; remove the file and run the suite again.") from problem
    return record


def gallery(found: Sequence[BrokenImage], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Of each input that is an image, [1 or 3, height, width]: the src of its pictures, its labels, and its attempt.

    largest: the largest change of a value.
    """
    return [_gallery_entry(one, classes) for one in found if one.clean.ndim == 3 and one.clean.shape[0] in (1, 3)]


def _gallery_entry(one: BrokenImage, classes: Sequence[str]) -> dict[str, Any]:
    delta = one.attacked - one.clean
    largest = float(np.abs(delta).max())
    return {
        "clean": _png(one.clean),
        "attacked": _png(one.attacked),
        "difference": _png(0.5 + delta / (2 * max(largest, 1e-12))),  # grey is no change
        "row": one.row,
        "truth": _class_name(one.y, classes),
        "predicted": _class_name(one.defended, classes),
        "bare": _class_name(one.bare, classes),
        "attempt": one.attempt,
        "largest": largest,
    }


def _class_name(label: int, classes: Sequence[str]) -> str:
    return "" if label < 0 else classes[label] if label < len(classes) else str(label)


def _png(image: npt.NDArray[np.floating]) -> str:
    """The image as src of an <img>."""
    levels = (image.clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
