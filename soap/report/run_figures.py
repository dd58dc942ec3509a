"""Figures of the page of a run: accuracy by protocol and by radius, loss by step, images that broke the defence."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

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
from soap.report.run_words import protocol_lines
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
class RadiusCurveData:
    """Accuracy under the strongest attack at every radius, on `images` that are correctly classified when clean."""

    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    images: int
    threat: float

    @property
    def words(self) -> str:
        """The curve as text."""
        return "Accuracy by radius: " + "; ".join(
            f"{eps:.3g}: {100 * share:.1f} %" for eps, share in zip(self.eps, self.accuracy, strict=True)
        )

    @property
    def caption(self) -> str:
        """Caption of the figure."""
        text = (
            f"The strongest attack at other radii, on {self.images} images that are correctly classified when clean; "
            "the run's radius is dotted. A sound attack breaks more images at a larger radius."
        )
        far = [
            (eps, share)
            for eps, share in zip(self.eps, self.accuracy, strict=True)
            if eps > MAX_DRAWN_RATIO * self.threat
        ]
        return text + "".join(f" At radius {eps:.3g}: {100 * share:.1f} %." for eps, share in far)


@dataclass(frozen=True, kw_only=True)
class LossByStep:
    """Mean loss, and share of images not broken yet, after every step of the strongest attack."""

    attack: str
    loss: tuple[float, ...]
    standing: tuple[float, ...]

    @property
    def words(self) -> str:
        """The curve as text."""
        return (
            f"Mean loss from {self.loss[0]:.3g} to {self.loss[-1]:.3g} and images not broken from "
            f"{100 * self.standing[0]:.1f} % to {100 * self.standing[-1]:.1f} % in {len(self.loss) - 1} steps."
        )

    @property
    def caption(self) -> str:
        """Caption of the figure."""
        return f"Step by step: {self.attack}. Where the curves still move at the end, more steps would break more."


def accuracy_by_radius(folder: RunFolder) -> RadiusCurveData | None:
    """The curve of the run's measurement `radii`; None if it was not measured or failed."""
    found = _record(folder, radii.MEASUREMENT, ("eps", "accuracy"))
    if found is None:
        return None
    threat = float(folder.plan()["threat"]["eps"])
    return RadiusCurveData(eps=found.eps, accuracy=found.accuracy, images=found.images, threat=threat)


def loss_by_step(folder: RunFolder) -> LossByStep | None:
    """The curve of the run's measurement `loss-curve`; None if it was not measured or failed."""
    found = _record(folder, best_iterate.LOSS_CURVE, ("loss", "standing"))
    return None if found is None else LossByStep(attack=found.attack, loss=found.loss, standing=found.standing)


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


def draw_radii(curve: RadiusCurveData) -> Figure:
    """Accuracy against the radius, with 95 % intervals."""
    figure, axes = page_axes(5, 3.4, "radius of the attack", "correctly classified, %")
    points = [pair for pair in zip(curve.eps, curve.accuracy, strict=True) if pair[0] <= MAX_DRAWN_RATIO * curve.threat]
    places, shares = [eps for eps, _ in points], [100 * share for _, share in points]
    bounds = [[100 * bound for bound in wilson(round(share * curve.images), curve.images)] for _, share in points]
    axes.fill_between(
        places, [low for low, _ in bounds], [high for _, high in bounds], color=LIGHT.purified, alpha=0.25, linewidth=0
    )
    axes.plot(places, shares, color=LIGHT.purified, marker="o", linewidth=2)
    axes.axvline(curve.threat, color=LIGHT.ink, linestyle=(0, (2, 2)), linewidth=1.2)
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    return figure


def draw_losses(curve: LossByStep) -> Figure:
    """Mean loss and images not broken against the step, each with its own scale."""
    figure, axes = page_axes(5, 3.4, "step of the attack", "mean loss")
    steps = range(len(curve.loss))
    axes.plot(steps, curve.loss, color=LIGHT.adversarial, linewidth=2)
    axes.set_xlim(0, max(1, len(curve.loss) - 1))
    axes.yaxis.label.set_color(LIGHT.adversarial)
    other = axes.twinx()
    other.plot(steps, [100 * share for share in curve.standing], color=LIGHT.purified, linewidth=2, linestyle="--")
    other.set_ylim(0, 102)
    other.set_ylabel("images not broken, % (dashed)", fontsize=PAGE_FONT_SIZE, color=LIGHT.purified)
    other.tick_params(labelsize=PAGE_FONT_SIZE, colors=LIGHT.ink)
    for name, spine in other.spines.items():
        spine.set_visible(name == "right")
        spine.set_color(LIGHT.ink)
    return figure


@dataclass(frozen=True, kw_only=True)
class GalleryImage:
    """A broken image: src of its three pictures, labels, attempt, and the largest change of a value."""

    clean: str
    attacked: str
    difference: str
    row: int
    truth: str
    predicted: str
    bare: str
    attempt: str
    largest: float


def gallery(found: Sequence[BrokenImage], classes: Sequence[str]) -> list[GalleryImage]:
    """Gallery entries of all inputs that are images: [1 or 3, height, width]."""
    return [_gallery_image(one, classes) for one in found if one.clean.ndim == 3 and one.clean.shape[0] in (1, 3)]


def _gallery_image(one: BrokenImage, classes: Sequence[str]) -> GalleryImage:
    delta = one.attacked - one.clean
    largest = float(np.abs(delta).max())
    return GalleryImage(
        clean=_png(one.clean),
        attacked=_png(one.attacked),
        difference=_png(0.5 + delta / (2 * max(largest, 1e-12))),  # grey is no change
        row=one.row,
        truth=_class_name(one.y, classes),
        predicted=_class_name(one.defended, classes),
        bare=_class_name(one.bare, classes),
        attempt=one.attempt,
        largest=largest,
    )


def _class_name(label: int, classes: Sequence[str]) -> str:
    return "" if label < 0 else classes[label] if label < len(classes) else str(label)


def _png(image: npt.NDArray[np.floating]) -> str:
    """The image as src of an <img>."""
    levels = (image.clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
