"""The inputs of the paper's figures: whether each is available, and how it is made.

An input that belongs to a model is made from the model's weights; timings come from `soap bench` only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soap import data as library
from soap import recipes
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.evaluation import PAPER, fingerprint
from soap.evaluation.transfer import Watch
from soap.paper import attacked_examples, figure_data, gradient_variants, radius_curve, row_queries, sweeps, task_views
from soap.paper.attacked_examples import Examples
from soap.paper.figure_data import FigureData
from soap.paper.radius_curve import RadiusCurve
from soap.results import Row, Store

VIEW_SEED = 1
"""With this seed the random view is not flipped, so that it differs visibly from the fixed one."""

CURVE_IMAGES = 1_000
"""Number of test images for the mean losses of a curve."""


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Where and how inputs are made. limit: measure on the first so many test images; None uses all."""

    folder: Path
    store: Store
    data_root: Path | None = None
    limit: int | None = None
    batch: int = 500
    seed: int = 0
    watch: Watch = lambda what, done, total: None
    stop: Callable[[], bool] = lambda: False

    def images(self, name: str, limit: int | None = None, like: JointModel | None = None) -> Dataset:
        """The first test images of a data set, at most `limit`, on the device of the model `like`."""
        data = library.load(name, "test", root=self.data_root)
        data = data if limit is None else data.take(min(len(data), limit))
        return data if like is None else data.to(next(like.parameters()).device)


class FigureInput(ABC):
    """One input of a figure."""

    @property
    @abstractmethod
    def need(self) -> str:
        """What it is, in words."""

    @abstractmethod
    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words; None if it is complete."""

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Make it; False if its model is not among `models` or it exists already."""
        return False


@dataclass(frozen=True)
class CurveInput(FigureInput):
    """File: a model's auxiliary losses against the radius."""

    model: str

    @property
    def need(self) -> str:
        """The input in words."""
        return f"auxiliary losses of {self.model} against the radius"

    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words."""
        exists = (data.folder / radius_curve.file_name(self.model)).exists()
        return None if exists else f"no losses of {self.model} yet"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Measure the losses into the file."""
        model, path = models.get(self.model), options.folder / radius_curve.file_name(self.model)
        if model is None or _made_with(model, path, RadiusCurve):
            return False
        data = options.images(_data_of(self.model), min(CURVE_IMAGES, options.limit or CURVE_IMAGES), model)
        figure_data.save(
            path,
            radius_curve.measure_radius_curve(
                model, data, sweeps.paper_pgd(data), batch=options.batch, seed=options.seed, watch=options.watch
            ),
        )
        return True


@dataclass(frozen=True)
class ExamplesInput(FigureInput):
    """File: a model's examples, one a class, under every attack."""

    model: str

    @property
    def need(self) -> str:
        """The input in words."""
        return f"images of {self.model} under every attack"

    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words."""
        exists = (data.folder / attacked_examples.file_name(self.model)).exists()
        return None if exists else f"no images of {self.model} yet"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Attack and purify the examples into the file."""
        model, path = models.get(self.model), options.folder / attacked_examples.file_name(self.model)
        if model is None or _made_with(model, path, Examples):
            return False
        data = options.images(_data_of(self.model), like=model)
        attacks = {name: attack for name, attack in PAPER[data.name].items() if name != "none"}
        figure_data.save(
            path,
            attacked_examples.make_examples(model, data, attacks, seed=options.seed, watch=options.watch),
        )
        return True


@dataclass(frozen=True)
class ViewsInput(FigureInput):
    """File: one image of a data set as the auxiliary tasks transform it; needs no model."""

    data: str
    label: str

    @property
    def need(self) -> str:
        """The input in words."""
        return f"an image of {self.data} as the tasks see it"

    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words."""
        exists = (data.folder / task_views.file_name(self.data)).exists()
        return None if exists else f"no views of an image of {self.data} yet"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Transform the image into the file."""
        path = options.folder / task_views.file_name(self.data)
        if path.exists():
            return False
        figure_data.save(path, task_views.make_views(options.images(self.data), self.label, seed=VIEW_SEED))
        return True


@dataclass(frozen=True)
class Sweep:
    """A family of rows: how it is measured, how it is found among all rows, and its number of cells."""

    words: str
    measure: Callable[..., list[Row]]
    find: Callable[[list[Row], str], Mapping[Any, Row]]
    cells: int


SWEEPS = {
    "betas": Sweep(
        "under the auxiliary-aware attack", sweeps.auxiliary_aware, row_queries.by_beta, 2 * len(sweeps.BETAS)
    ),
    "steps": Sweep(
        "by step size and steps", sweeps.steps_heat_map, row_queries.by_steps, len(sweeps.GAMMAS) * len(sweeps.STEPS)
    ),
    # From 0 to T = 5 steps of gamma by halves, and the radius chosen for every image.
    "radii": Sweep("with one radius for all images", sweeps.fixed_radii, row_queries.by_radius, 2 * 5 + 1 + 1),
    "rotation": Sweep("purified by either loss", sweeps.rotation_losses, row_queries.by_rotation_loss, 4),
    "leaking": Sweep("clean and under FGSM", sweeps.label_leaking, row_queries.by_attack, 2),
    "gradients": Sweep(
        "by the gradient of the purification loss",
        gradient_variants.measure_variants,
        row_queries.by_gradient,
        len(gradient_variants.ATTACKS) * len(gradient_variants.VARIANTS),
    ),
}


@dataclass(frozen=True)
class SweepInput(FigureInput):
    """Rows of one sweep of a model."""

    sweep: str
    model: str

    @property
    def need(self) -> str:
        """The input in words."""
        return f"rows of {self.model} {SWEEPS[self.sweep].words}"

    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words; for an unfinished sweep, how many rows there are."""
        sweep = SWEEPS[self.sweep]
        found = len(sweep.find(list(data.rows), self.model))
        if found >= sweep.cells:
            return None
        return f"only {found} of {sweep.cells} {self.need} yet" if found else f"no {self.need} yet"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Measure the rows that the store does not have."""
        model = models.get(self.model)
        if model is None:
            return False
        before = {row.key for row in options.store.read()}
        rows = SWEEPS[self.sweep].measure(
            model,
            options.images(_data_of(self.model), options.limit, model),
            store=options.store,
            batch=options.batch,
            seed=options.seed,
            watch=options.watch,
            stop=options.stop,
        )
        return any(row.key not in before for row in rows)


@dataclass(frozen=True)
class TimingInput(FigureInput):
    """Seconds of an epoch of a recipe, as `soap bench train` measures it."""

    model: str

    @property
    def need(self) -> str:
        """The input in words."""
        return f"seconds an epoch of {self.model} takes"

    def missing(self, data: FigureData) -> str | None:
        """What is missing, with the command that measures it. Older rows without a mean do not count."""
        own = [row for row in data.timings if (row["what"], row["model"]) == ("train", self.model)]
        if any("mean" in row["paths"]["ours"]["seconds"] for row in own):
            return None
        lacking = "mean over the epochs" if own else "timing"
        return f"no {lacking} of {self.model} yet (soap bench train --alone --epochs 30 --model {self.model})"


def _data_of(model: str) -> str:
    return recipes.read(model).data


def _made_with(model: JointModel, path: Path, kind: type[RadiusCurve] | type[Examples]) -> bool:
    """Whether the file exists and was made with the same weights."""
    return path.exists() and figure_data.read(path, kind).provenance["weights_sha256"] == fingerprint(model)
