"""Accuracy against the radius, and the loss by step of the strongest attack."""

import math
from dataclasses import dataclass

from matplotlib.figure import Figure

from soap.errors import FileError
from soap.evaluation.run_folder import RunFolder
from soap.report.drawing import Palette
from soap.report.panels import PAGE_FONT_SIZE, page_axes
from soap.results import wilson

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
    """The curve of the run's probe `radii`; None if the probe was not run or failed."""
    fact = _numbers(folder, "radii", ("eps", "accuracy"))
    if fact is None:
        return None
    images = folder.read_fact("radii").get("images")  # type: ignore[union-attr]  # exists: its curves were read
    if not isinstance(images, int) or images < 1:
        raise _damaged(folder, "radii")
    return RadiusCurveData(
        eps=fact["eps"], accuracy=fact["accuracy"], images=images, threat=float(folder.plan()["threat"]["eps"])
    )


def loss_by_step(folder: RunFolder) -> LossByStep | None:
    """The curve of the run's probe `loss-curve`; None if the probe was not run or failed."""
    fact = _numbers(folder, "loss-curve", ("loss", "standing"))
    if fact is None:
        return None
    return LossByStep(attack=str(folder.read_fact("loss-curve").get("attack")), **fact)  # type: ignore[union-attr]


def draw_radii(curve: RadiusCurveData, palette: Palette) -> Figure:
    """Accuracy against the radius, with 95 % intervals."""
    figure, axes = page_axes(palette, 5, 3.4, "radius of the attack", "correctly classified, %")
    points = [pair for pair in zip(curve.eps, curve.accuracy, strict=True) if pair[0] <= MAX_DRAWN_RATIO * curve.threat]
    radii, shares = [eps for eps, _ in points], [100 * share for _, share in points]
    bounds = [[100 * bound for bound in wilson(round(share * curve.images), curve.images)] for _, share in points]
    axes.fill_between(
        radii, [low for low, _ in bounds], [high for _, high in bounds], color=palette.purified, alpha=0.25, linewidth=0
    )
    axes.plot(radii, shares, color=palette.purified, marker="o", linewidth=2)
    axes.axvline(curve.threat, color=palette.ink, linestyle=(0, (2, 2)), linewidth=1.2)
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    return figure


def draw_losses(curve: LossByStep, palette: Palette) -> Figure:
    """Mean loss and images not broken against the step, each with its own scale."""
    figure, axes = page_axes(palette, 5, 3.4, "step of the attack", "mean loss")
    steps = range(len(curve.loss))
    axes.plot(steps, curve.loss, color=palette.adversarial, linewidth=2)
    axes.set_xlim(0, max(1, len(curve.loss) - 1))
    axes.yaxis.label.set_color(palette.adversarial)
    other = axes.twinx()
    other.plot(steps, [100 * share for share in curve.standing], color=palette.purified, linewidth=2, linestyle="--")
    other.set_ylim(0, 102)
    other.set_ylabel("images not broken, % (dashed)", fontsize=PAGE_FONT_SIZE, color=palette.purified)
    other.tick_params(labelsize=PAGE_FONT_SIZE, colors=palette.ink)
    for name, spine in other.spines.items():
        spine.set_visible(name == "right")
        spine.set_color(palette.ink)
    return figure


def _numbers(folder: RunFolder, name: str, keys: tuple[str, str]) -> dict[str, tuple[float, ...]] | None:
    """The named lists of a probe's result, of equal length; None if it is missing or reports a problem."""
    fact = folder.read_fact(name)
    if fact is None or (isinstance(fact, dict) and "problem" in fact):
        return None
    lists = [fact.get(key) for key in keys] if isinstance(fact, dict) else []
    whole = [
        tuple(float(value) for value in values)
        for values in lists
        if isinstance(values, list) and values and all(_finite(value) for value in values)
    ]
    if len(whole) != len(keys) or len({len(values) for values in whole}) != 1:
        raise _damaged(folder, name)
    return dict(zip(keys, whole, strict=True))


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _damaged(folder: RunFolder, name: str) -> FileError:
    path = folder.path / "facts" / f"{name}.json"
    return FileError(f"{path}: expected the result of a probe; remove the file and run the suite again.")
