"""The paper's figures and ablations as data: what each is drawn from, and what of it is missing.

Figures are drawn from records, result rows, and timings of `soap bench`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from soap.paper.figure_records import RECORDS, read, record_path
from soap.paper.sweeps import SWEEPS
from soap.paper.tables import read_toml
from soap.results import Row

NETWORK_NAMES = {"fcn": "FCN", "cnn": "CNN", "resnet18": "ResNet-18", "wide-resnet28": "Wide-ResNet-28"}
METHOD_NAMES = {
    "no-def": "No Def",
    "fgsm-at": "FGSM AT",
    "pgd-at": "PGD AT",
    "dr": "SOAP-DR",
    "rp": "SOAP-RP",
    "lc": "SOAP-LC",
}
DATA_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


class ModelName(NamedTuple):
    """Display names of a recipe's data set, network and method."""

    data: str
    network: str
    method: str

    @property
    def title(self) -> str:
        """'SOAP-LC, ResNet-18'."""
        return f"{self.method}, {self.network}"


def name_of(model: str) -> ModelName:
    """("CIFAR-10", "ResNet-18", "SOAP-LC") from "cifar10-resnet18-lc"."""
    data, _, rest = model.partition("-")
    network = next(name for name in NETWORK_NAMES if rest.startswith(name))
    return ModelName(DATA_NAMES[data], NETWORK_NAMES[network], METHOD_NAMES[rest.removeprefix(f"{network}-")])


WORDS = {
    "curve": "auxiliary losses of {} against the radius",
    "examples": "images of {} under every attack",
    "timing": "seconds an epoch of {} takes",
    **{name: "rows of {} " + sweep.words for name, sweep in SWEEPS.items()},
}
"""An input in words, by its kind."""


@dataclass(frozen=True, kw_only=True)
class FigureData:
    """A folder of records, result rows, and timings of `soap bench`."""

    folder: Path
    rows: Sequence[Row] = field(default=(), repr=False)
    timings: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def get(self, kind: str, model: str) -> Any:
        """A model's record ("curve" or "examples"; None if there is none), or its rows of a sweep by cell."""
        if kind in SWEEPS:
            return SWEEPS[kind].find(self.rows, model)
        path = record_path(self.folder, kind, model)
        return read(path, RECORDS[kind]) if path.exists() else None


@dataclass(frozen=True)
class FigureInput:
    """What a figure shows of one model. kind: a record's ("curve", "examples"), "timing", or the name of a sweep."""

    kind: str
    model: str

    @property
    def need(self) -> str:
        """The input in words."""
        return WORDS[self.kind].format(self.model)

    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words; None if it is complete. An unfinished sweep says how many rows there are."""
        if self.kind == "timing":
            command = f"soap bench train --alone --epochs 30 --model {self.model}"
            return None if _trainings(data.timings, [self.model]) else f"no {self.need} yet ({command})"
        found = data.get(self.kind, self.model)
        if self.kind in SWEEPS and 0 < len(found) < SWEEPS[self.kind].size:
            return f"only {len(found)} of {SWEEPS[self.kind].size} {self.need} yet"
        return None if found else f"no {self.need} yet"


TABLE_KINDS = ("steps", "radii", "rotation", "leaking", "gradients")
"""Sweeps that are shown as a table: ablations, of which the paper has no figure."""


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure; title and caption are in our words. kind: that of the inputs, one for each of `models`."""

    name: str
    title: str
    caption: str
    kind: str
    models: Sequence[str]

    @property
    def inputs(self) -> tuple[FigureInput, ...]:
        """What the figure shows of each model."""
        return tuple(FigureInput(self.kind, model) for model in self.models)

    def missing(self, data: FigureData) -> list[str]:
        """Missing inputs in words; the figure is drawn without them and says so."""
        return [words for one in self.inputs if (words := one.missing(data)) is not None]


FIGURES = {name: PaperFigure(name=name, **entry) for name, entry in read_toml("figures.toml").items()}
"""Every figure by name, those of the paper first."""

TASKS = tuple(FIGURES["figure-3"].models)
"""One model a task, in the order of the paper's panels."""


# --- Duration of a training epoch (Figure 7) --------------------------------------------------------------------------

NETWORKS: dict[str, list[str]] = {}
"""Recipes of Figure 7 by the title of their panel, such as "FCN, MNIST"."""
for _model in FIGURES["figure-7"].models:
    NETWORKS.setdefault(f"{name_of(_model).network}, {name_of(_model).data}", []).append(_model)

BenchTiming = Mapping[str, Any]
"""A row of `soap bench train`."""


def epoch_seconds(timings: Sequence[BenchTiming]) -> dict[str, float]:
    """Mean seconds of an epoch by recipe, as Figure 7 shows them."""
    kept = [comparable(timings, models) for models in NETWORKS.values()]
    return {model: seconds(row)["mean"] for chosen in kept for model, row in chosen.items()}


def comparable(timings: Sequence[BenchTiming], models: Sequence[str]) -> dict[str, BenchTiming]:
    """One timing of each model, all from one machine and one way to train.

    The chosen way to train is the one with most methods, then most epochs, then the latest; of one model, the timing of
    most epochs, then the latest.
    """
    by_way: dict[tuple[Any, ...], dict[str, BenchTiming]] = {}
    for row in sorted(_trainings(timings, models), key=_epochs_and_date):
        place, case = row["provenance"], row["case"]
        way = (place["device"], place["processor"], case["precision"], case["compiled"], case["batch_size"])
        by_way.setdefault(way, {})[row["model"]] = row
    return max(by_way.values(), key=_preference, default={})


def seconds(timing: BenchTiming) -> Mapping[str, float]:
    """Mean, deviation and number of the timed epochs."""
    return timing["paths"]["ours"]["seconds"]  # type: ignore[no-any-return]


def _trainings(timings: Sequence[BenchTiming], models: Sequence[str]) -> list[BenchTiming]:
    """Timings of the training of these models; rows of an older format, without a mean, do not count."""
    return [row for row in timings if row["what"] == "train" and row["model"] in models and "mean" in seconds(row)]


def _epochs_and_date(timing: BenchTiming) -> tuple[float, str]:
    return seconds(timing)["repeats"], timing["provenance"]["date"]


def _preference(kept: Mapping[str, BenchTiming]) -> tuple[int, float, str]:
    repeats, dates = zip(*map(_epochs_and_date, kept.values()), strict=True)
    return len(kept), sum(repeats), max(dates)
