"""The paper's figures and ablations as data: title, caption, claims and inputs. `soap.paper.figures` draws them.

An input that belongs to a model is made from the model's weights; timings come from `soap bench` only.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from soap import data as library
from soap import recipes
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.evaluation import PAPER, fingerprint
from soap.evaluation.transfer import Watch
from soap.paper import gradient_variants, row_queries, sweeps
from soap.paper.epoch_times import NETWORKS, recipes_of
from soap.paper.example_images import Examples, TaskViews, make_examples, make_views
from soap.paper.figure_data import FigureData, file_name, read, save
from soap.paper.radius_curve import RadiusCurve, measure_radius_curve
from soap.results import Row, Store

TASKS = ("mnist-fcn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc")
"""One model a task, in the order of the paper's panels."""

VIEW_CLASS, VIEW_SEED = "horse", 1
"""Figure 6 shows the first image of this class. With this seed its random view is not flipped, unlike the fixed one."""

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


FILE_WORDS: dict[type, tuple[str, str]] = {
    RadiusCurve: ("auxiliary losses of {} against the radius", "losses of {}"),
    Examples: ("images of {} under every attack", "images of {}"),
    TaskViews: ("an image of {} as the tasks see it", "views of an image of {}"),
}
"""By the kind of record: the input in words, and in short."""


@dataclass(frozen=True)
class FileInput:
    """A file of `FigureData.folder`. name: of the model, or of the data set for `TaskViews`."""

    kind: type[RadiusCurve | Examples | TaskViews]
    name: str

    @property
    def model(self) -> str | None:
        """The model it is made from."""
        return None if self.kind is TaskViews else self.name

    @property
    def need(self) -> str:
        """The input in words."""
        return FILE_WORDS[self.kind][0].format(self.name)

    def missing(self, data: FigureData) -> str | None:
        """What is missing, in words; None if it is complete."""
        exists = (data.folder / file_name(self.kind, self.name)).exists()
        return None if exists else f"no {FILE_WORDS[self.kind][1].format(self.name)} yet"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Make the file; False if its model is not among `models` or the file exists, made with the same weights."""
        path, model = options.folder / file_name(self.kind, self.name), models.get(self.name)
        if self.kind is TaskViews:
            if path.exists():
                return False
            save(path, make_views(options.images(self.name), VIEW_CLASS, seed=VIEW_SEED))
            return True
        if model is None:
            return False
        if path.exists() and read(path, self.kind).provenance["weights_sha256"] == fingerprint(model):
            return False
        how: dict[str, Any] = {"seed": options.seed, "watch": options.watch}
        if self.kind is RadiusCurve:
            limit = min(CURVE_IMAGES, options.limit or CURVE_IMAGES)
            data = options.images(recipes.read(self.name).data, limit, model)
            save(path, measure_radius_curve(model, data, sweeps.paper_pgd(data), batch=options.batch, **how))
        else:
            data = options.images(recipes.read(self.name).data, like=model)
            attacks = {name: attack for name, attack in PAPER[data.name].items() if name != "none"}
            save(path, make_examples(model, data, attacks, **how))
        return True


@dataclass(frozen=True)
class Sweep:
    """A family of rows: how it is measured, how it is found among all rows, and its number of cells."""

    words: str
    measure: Callable[..., list[Row]]
    find: Callable[[Sequence[Row], str], Mapping[Any, Row]]
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
class SweepInput:
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
        found = len(sweep.find(data.rows, self.model))
        if found >= sweep.cells:
            return None
        return f"only {found} of {sweep.cells} {self.need} yet" if found else f"no {self.need} yet"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """Measure the rows that the store does not have; False if there are none or the model is not given."""
        model = models.get(self.model)
        if model is None:
            return False
        before = {row.key for row in options.store.read()}
        data = options.images(recipes.read(self.model).data, options.limit, model)
        how: dict[str, Any] = {name: getattr(options, name) for name in ("store", "batch", "seed", "watch", "stop")}
        return any(row.key not in before for row in SWEEPS[self.sweep].measure(model, data, **how))


@dataclass(frozen=True)
class TimingInput:
    """Seconds of an epoch of a recipe, as `soap bench train` measures it."""

    recipe: str
    model = None

    @property
    def need(self) -> str:
        """The input in words."""
        return f"seconds an epoch of {self.recipe} takes"

    def missing(self, data: FigureData) -> str | None:
        """What is missing, with the command that measures it. Older rows without a mean do not count."""
        own = [row for row in data.timings if (row["what"], row["model"]) == ("train", self.recipe)]
        if any("mean" in row["paths"]["ours"]["seconds"] for row in own):
            return None
        lacking = "mean over the epochs" if own else "timing"
        return f"no {lacking} of {self.recipe} yet (soap bench train --alone --epochs 30 --model {self.recipe})"

    def make(self, models: Mapping[str, JointModel], options: InputOptions) -> bool:
        """False: `soap bench` measures it."""
        return False


def _files(kind: type[RadiusCurve | Examples | TaskViews], *names: str) -> tuple[FileInput, ...]:
    return tuple(FileInput(kind, name) for name in names)


def _sweeps(sweep: str, *models: str) -> tuple[SweepInput, ...]:
    return tuple(SweepInput(sweep, model) for model in models)


FigureInput = FileInput | SweepInput | TimingInput

FIGURE_INPUTS: dict[str, tuple[FigureInput, ...]] = {
    "figure-1": (),
    "figure-2": _files(Examples, "mnist-fcn-dr"),
    "figure-3": _files(RadiusCurve, *TASKS),
    "figure-4": _files(Examples, "cifar10-wide-resnet28-rp", "cifar10-wide-resnet28-lc"),
    "figure-5": _sweeps("betas", *TASKS),
    "figure-6": _files(TaskViews, "cifar10"),
    "figure-7": tuple(TimingInput(recipe) for network in NETWORKS for recipe in recipes_of(network)),
    "figure-8": _files(Examples, "mnist-fcn-dr", "mnist-cnn-dr"),
    "figure-9": _files(Examples, "cifar10-resnet18-rp", "cifar10-wide-resnet28-rp"),
    "figure-10": _files(Examples, "cifar10-resnet18-lc", "cifar10-wide-resnet28-lc"),
    "ablation-steps": _sweeps("steps", *TASKS),
    "ablation-rotation": _sweeps("rotation", "cifar10-resnet18-rp"),
    "ablation-radius": _sweeps("radii", *TASKS),
    "ablation-leaking": _sweeps("leaking", *(f"{network}-fgsm-at" for network in NETWORKS)),
    "ablation-gradients": _sweeps("gradients", "cifar10-resnet18-lc"),
}


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure; title and caption are in our words."""

    name: str
    title: str
    caption: str
    inputs: tuple[FigureInput, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """Models whose weights `make_inputs` can use."""
        return tuple(dict.fromkeys(one.model for one in self.inputs if one.model is not None))

    def missing(self, data: FigureData) -> list[str]:
        """Missing inputs in words; the figure is drawn without them and says so."""
        return [words for one in self.inputs if (words := one.missing(data)) is not None]

    def make_inputs(self, models: Mapping[str, JointModel], options: InputOptions) -> list[str]:
        """Make the inputs that the given models (by name) allow; returns those that were made, in words.

        Files go to `options.folder`, rows to `options.store`. Existing ones from the same weights are not made again.
        `options.stop` is called between inputs and between batches.
        """
        return [one.need for one in self.inputs if not options.stop() and one.make(models, options)]


def _read() -> dict[str, PaperFigure]:
    words = tomllib.loads((resources.files(__package__) / "figures.toml").read_text(encoding="utf-8"))
    return {name: PaperFigure(name=name, inputs=inputs, **words[name]) for name, inputs in FIGURE_INPUTS.items()}


FIGURES: dict[str, PaperFigure] = _read()
"""Every figure by name, those of the paper first."""
