"""What a figure of the paper is drawn from, piece by piece: whether it is at hand, and how it is made.

A piece that belongs to a model is made from that model's weights; timings are made by `soap bench` alone.
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
from soap.evaluation import PAPER, curves, fingerprint, gathered, gradient_evidence, sweeps, swept, views
from soap.evaluation import examples as pictures
from soap.evaluation.curves import RadiusCurve
from soap.evaluation.examples import Examples
from soap.evaluation.gathered import Material
from soap.evaluation.transfer import Watch
from soap.results import Row, Store

VIEW_SEED = 1
"""Its random view is not flipped, so that it differs from the fixed one at a glance."""

CURVE_IMAGES = 1_000
"""Over so many test images the mean losses of a curve are taken."""


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """Where and how pieces are made. limit: measure on the first so many test images; None takes all."""

    folder: Path
    store: Store
    data_root: Path | None = None
    limit: int | None = None
    batch: int = 500
    seed: int = 0
    watch: Watch = lambda what, done, total: None
    stop: Callable[[], bool] = lambda: False

    def images(self, name: str, most: int | None = None, like: JointModel | None = None) -> Dataset:
        """The first test images of a data set, at most so many, on the model's device."""
        data = library.load(name, "test", root=self.data_root)
        data = data if most is None else data.take(min(len(data), most))
        return data if like is None else data.to(next(like.parameters()).device)


class Piece(ABC):
    """One thing that a figure needs."""

    @property
    @abstractmethod
    def need(self) -> str:
        """What it is, in words."""

    @abstractmethod
    def missing(self, material: Material) -> str | None:
        """What is not at hand, in words; None where all is."""

    def make(self, models: Mapping[str, JointModel], at: Workbench) -> bool:
        """Make it if the model it takes is among `models`; False where it is not, or where it is at hand already."""
        return False


@dataclass(frozen=True)
class Curve(Piece):
    """A model's auxiliary losses against the radius."""

    model: str

    @property
    def need(self) -> str:
        """It, in words."""
        return f"auxiliary losses of {self.model} against the radius"

    def missing(self, material: Material) -> str | None:
        """What is lacking: its file."""
        there = (material.folder / curves.file_name(self.model)).exists()
        return None if there else f"no losses of {self.model} yet"

    def make(self, models: Mapping[str, JointModel], at: Workbench) -> bool:
        """Gather it into its file."""
        model, path = models.get(self.model), at.folder / curves.file_name(self.model)
        if model is None or _made_with(model, path, RadiusCurve):
            return False
        data = at.images(_data_of(self.model), min(CURVE_IMAGES, at.limit or CURVE_IMAGES), model)
        gathered.save(
            path,
            curves.radius_curve(model, data, sweeps.paper_pgd(data), batch=at.batch, seed=at.seed, watch=at.watch),
        )
        return True


@dataclass(frozen=True)
class Pictures(Piece):
    """A model's examples, one a class, under every attack."""

    model: str

    @property
    def need(self) -> str:
        """It, in words."""
        return f"images of {self.model} under every attack"

    def missing(self, material: Material) -> str | None:
        """What is lacking: its file."""
        there = (material.folder / pictures.file_name(self.model)).exists()
        return None if there else f"no images of {self.model} yet"

    def make(self, models: Mapping[str, JointModel], at: Workbench) -> bool:
        """Gather it into its file."""
        model, path = models.get(self.model), at.folder / pictures.file_name(self.model)
        if model is None or _made_with(model, path, Examples):
            return False
        data = at.images(_data_of(self.model), like=model)
        attacks = {name: attack for name, attack in PAPER[data.name].items() if name != "none"}
        gathered.save(path, pictures.examples(model, data, attacks, seed=at.seed, watch=at.watch))
        return True


@dataclass(frozen=True)
class Views(Piece):
    """One image of a data set as the auxiliary tasks see it; needs no model."""

    data: str
    label: str

    @property
    def need(self) -> str:
        """It, in words."""
        return f"an image of {self.data} as the tasks see it"

    def missing(self, material: Material) -> str | None:
        """What is lacking: its file."""
        there = (material.folder / views.file_name(self.data)).exists()
        return None if there else f"no views of an image of {self.data} yet"

    def make(self, models: Mapping[str, JointModel], at: Workbench) -> bool:
        """Gather it into its file."""
        path = at.folder / views.file_name(self.data)
        if path.exists():
            return False
        gathered.save(path, views.task_views(at.images(self.data), self.label, seed=VIEW_SEED))
        return True


@dataclass(frozen=True)
class Sweep:
    """A family of rows: how it is measured, found again among all rows, and how many cells it has when whole."""

    what: str
    measure: Callable[..., list[Row]]
    find: Callable[[list[Row], str], Mapping[Any, Row]]
    cells: int


SWEEPS = {
    "betas": Sweep("under the auxiliary-aware attack", sweeps.auxiliary_aware, swept.by_beta, 2 * len(sweeps.BETAS)),
    "steps": Sweep(
        "by step size and steps", sweeps.steps_heat_map, swept.by_steps, len(sweeps.GAMMAS) * len(sweeps.STEPS)
    ),
    # From 0 to T = 5 steps of gamma by halves, and the radius chosen for every image.
    "radii": Sweep("with one radius for all images", sweeps.fixed_radii, swept.by_radius, 2 * 5 + 1 + 1),
    "rotation": Sweep("purified by either loss", sweeps.rotation_losses, swept.by_rotation_loss, 4),
    "leaking": Sweep("clean and under FGSM", sweeps.label_leaking, swept.by_attack, 2),
    "gradients": Sweep(
        "by the gradient of the purification loss",
        gradient_evidence.gradient_evidence,
        swept.by_gradient,
        len(gradient_evidence.ATTACKS) * len(gradient_evidence.VARIANTS),
    ),
}


@dataclass(frozen=True)
class Swept(Piece):
    """Rows of one sweep of a model."""

    sweep: str
    model: str

    @property
    def need(self) -> str:
        """It, in words."""
        return f"rows of {self.model} {SWEEPS[self.sweep].what}"

    def missing(self, material: Material) -> str | None:
        """What is lacking; a sweep cut off tells how far it came."""
        sweep = SWEEPS[self.sweep]
        found = len(sweep.find(list(material.rows), self.model))
        if found >= sweep.cells:
            return None
        return f"only {found} of {sweep.cells} {self.need} yet" if found else f"no {self.need} yet"

    def make(self, models: Mapping[str, JointModel], at: Workbench) -> bool:
        """Measure what the store lacks."""
        model = models.get(self.model)
        if model is None:
            return False
        before = {row.key for row in at.store.read()}
        rows = SWEEPS[self.sweep].measure(
            model,
            at.images(_data_of(self.model), at.limit, model),
            store=at.store,
            batch=at.batch,
            seed=at.seed,
            watch=at.watch,
            stop=at.stop,
        )
        return any(row.key not in before for row in rows)


@dataclass(frozen=True)
class Timing(Piece):
    """How long an epoch of a recipe takes, as `soap bench train` measures it."""

    model: str

    @property
    def need(self) -> str:
        """It, in words."""
        return f"seconds an epoch of {self.model} takes"

    def missing(self, material: Material) -> str | None:
        """What is lacking, and the command that measures it; a row without a mean, as they were once, does not do."""
        own = [row for row in material.timings if (row["what"], row["model"]) == ("train", self.model)]
        if any("mean" in row["paths"]["ours"]["seconds"] for row in own):
            return None
        lacking = "mean over the epochs" if own else "timing"
        return f"no {lacking} of {self.model} yet (soap bench train --alone --epochs 30 --model {self.model})"


def _data_of(model: str) -> str:
    return recipes.read(model).data


def _made_with(model: JointModel, path: Path, kind: type[RadiusCurve] | type[Examples]) -> bool:
    """Whether the file is there and of the same weights."""
    return path.exists() and gathered.read(path, kind).provenance["weights_sha256"] == fingerprint(model)
