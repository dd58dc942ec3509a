"""Run the jobs behind the paper's tables and figures one after another; append every row at once, resume."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from soap import data as library
from soap import recipes, zoo
from soap._files import tensor_files
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.data.sources import SOURCES
from soap.errors import FileError, InputError
from soap.evaluation import PAPER, evaluate_transfer
from soap.paper.black_box import SUBSTITUTES, evaluate_black_box
from soap.paper.figure_records import make_examples, measure_radius_curve, record_path, save
from soap.paper.jobs import EvaluationJob, FigureJob, Job, TrainingJob
from soap.paper.sweeps import SWEEPS
from soap.paper.tables import CellQuery
from soap.purifiers import SOAP, Purifier
from soap.recipes import GenerativeRecipe, generative
from soap.results import Row, Store
from soap.training import checkpoint

WEIGHTS = "last.safetensors"


ShowStep = Callable[..., None]
"""Called with what is being done, how much is done, of how much, and by `run_jobs` with the job's title."""


class MissingError(Exception):
    """Data or weights of a job are missing; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class JobsResult:
    """Result of a run: the number of planned and of finished jobs, and the new rows.

    skipped: jobs that could not run, each with what is missing and the command that fetches it.
    """

    jobs: int
    done: int
    skipped: dict[Job, str]
    rows: list[Row]

    @property
    def finished(self) -> bool:
        """False if it was stopped before the end."""
        return self.done + len(self.skipped) == self.jobs


def run_jobs(
    jobs: Sequence[Job],
    runner: "JobRunner",
    *,
    show: ShowStep = lambda *step, note: None,
    announce: Callable[[str], None] = lambda title: None,
) -> JobsResult:
    """Run one job after another. Jobs without their data set or weights are skipped.

    Finished work is kept after a stop, and the jobs that are planned then resume it. announce: is called with the title
    of each job when it starts.
    """
    before = {row.key for row in runner.store.read()}
    done, skipped = 0, dict[Job, str]()
    for number, job in enumerate(jobs, 1):
        if runner.stop():
            break
        title = f"{number}/{len(jobs)} {job.title}"
        announce(title)
        try:
            if not runner.run(job, partial(show, note=title)):
                break
            done += 1
        except MissingError as problem:
            skipped[job] = str(problem)
    new = [row for row in Store(runner.store.path).read() if row.key not in before]
    return JobsResult(jobs=len(jobs), done=done, skipped=skipped, rows=new)


@dataclass(kw_only=True)
class JobRunner:
    """Runs single jobs; keeps the data and the model of the last job for the next one.

    store: receives every row at once. figures: folder of records. Weights are the bundled ones (seed 0), else
    `runs`/RECIPE[-seed-N]/last.safetensors, which are trained if they do not exist; an interrupted training is resumed
    from its checkpoint. seed: of a figure's records. precision, compiled: of training. stop: is called between batches
    and steps.
    """

    store: Store
    runs: Path
    figures: Path
    device: torch.device
    data_root: Path | None = None
    batch_size: int = 500
    seed: int = 0
    precision: str = "fp32"
    compiled: bool = False
    stop: Callable[[], bool] = lambda: False
    _images: dict[tuple[str, str], Dataset] = field(default_factory=dict, init=False)
    _models: dict[tuple[Path, str | None], JointModel] = field(default_factory=dict, init=False)
    _missing: dict[tuple[str, int], str] = field(default_factory=dict, init=False)
    """Why a training, by recipe and seed, was skipped."""

    def run(self, job: Job, show: ShowStep) -> bool:
        """Run the job; False if it was stopped. Raises MissingError if data or weights are missing."""
        if isinstance(job, EvaluationJob):
            return self.evaluate(job, show)
        if isinstance(job, FigureJob):
            return self.make_input(job, show)
        try:
            return self.train(job, show)
        except MissingError as problem:
            self._missing[job.recipe, job.seed] = str(problem)
            raise

    def weights(self, recipe: str, seed: int) -> Path | None:
        """Weights of a training; None if it is not finished."""
        if (bundled := bundled_weights(recipe, seed)) is not None:
            return bundled
        path = self.run_folder(recipe, seed) / WEIGHTS
        if not path.exists():
            return None
        _check_recipe(path, recipe, seed)
        return path

    def run_folder(self, recipe: str, seed: int) -> Path:
        """Folder of the training of a recipe from a seed; for seed 0 the folder that `soap train` uses."""
        return self.runs / (f"{recipe}-seed-{seed}" if seed else recipe)

    def train(self, job: TrainingJob, show: ShowStep) -> bool:
        """Train into the run's folder; False if it was stopped."""
        recipe = recipes.find(job.recipe)
        folder = self.run_folder(job.recipe, job.seed)
        options: dict[str, Any] = {
            "images": self.images(recipe.data, "train"),
            "out": folder,
            "device": self.device,
            "precision": self.precision,
            "compiled": self.compiled,
            "resume": (folder / checkpoint.NAME).exists(),
            "watch": lambda at: show("train", at.step, at.steps),
            "stop": self.stop,
        }
        done = recipes.make(recipes.revised(recipe, epochs=job.epochs, seed=job.seed), **options)
        if done.finished and not (folder / WEIGHTS).exists():
            raise MissingError(
                f"{folder}: the checkpoint is that of the last step, but {WEIGHTS} is missing; remove "
                f"{checkpoint.NAME} there to train it again."
            )
        return done.finished

    def evaluate(self, job: EvaluationJob, show: ShowStep) -> bool:
        """Append the job's rows to the store; False if it was stopped."""
        path = self._required_weights(job.recipe, job.seed)
        name = recipes.read(job.recipe).data
        model = self.model(path, None)
        purifiers = [self.purifier(cell, path) for cell in job.purified]
        images = self.images(name, "test")
        options: dict[str, Any] = {"store": self.store, "batch_size": self.batch_size, "watch": show, "stop": self.stop}
        if job.attack in SUBSTITUTES:
            settings = SUBSTITUTES[job.attack]
            data = images.take(job.n + settings.seeds)
            rows = evaluate_black_box(model, data, {job.attack: settings}, purifiers, **options)
        else:
            attacks = {job.attack: PAPER[name][job.attack]}
            rows = evaluate_transfer(model, images.take(job.n), attacks, purifiers, **options)
        return len(rows) == 1 + len(purifiers)

    def make_input(self, job: FigureJob, show: ShowStep) -> bool:
        """Write the record of a figure's input, or append the rows of its sweep; False if it was stopped."""
        model = self.model(self._required_weights(job.recipe, 0), None)
        images = self.images(recipes.read(job.recipe).data, "test")
        data, kind, attacks = images.take(min(job.n, len(images))), job.source.kind, PAPER[images.name]
        path = record_path(self.figures, kind, job.recipe)
        options: dict[str, Any] = {"batch_size": self.batch_size, "seed": self.seed, "watch": show}
        if kind == "curve":
            save(path, measure_radius_curve(model, data, attacks["pgd"], **options))
        elif kind == "examples":
            shown = {name: attack for name, attack in attacks.items() if name != "none"}
            save(path, make_examples(model, data, shown, seed=self.seed, watch=show))
        else:
            SWEEPS[kind].measure(model, data, attacks, store=self.store, stop=self.stop, **options)
        return not self.stop()

    def model(self, path: Path, gradient: str | None) -> JointModel:
        """The model with these weights; models of other weights are dropped."""
        self._models = {key: model for key, model in self._models.items() if key[0] == path}
        if (path, gradient) not in self._models:
            self._models[path, gradient] = zoo.load(path, device=self.device, gradient=gradient)
        return self._models[path, gradient]

    def purifier(self, cell: CellQuery, path: Path) -> Purifier:
        """SOAP on the model with these weights, or the purifier of the cell's generative model by its recipe."""
        if cell.prior is None:
            return SOAP(self.model(path, cell.gradient), cell.eps_pfy)
        prior = zoo.load_prior(self._required_weights(cell.prior, 0), device=self.device)
        return generative.purifier(generative.read(cell.prior), prior)

    def images(self, name: str, split: str) -> Dataset:
        """The data set on the device; other ones are dropped."""
        self._images = {key: images for key, images in self._images.items() if key[0] == name}
        if (name, split) not in self._images:
            try:
                self._images[name, split] = library.load(name, split, root=self.data_root).to(self.device)
            except FileError as problem:
                raise MissingError(str(problem)) from problem
        return self._images[name, split]

    def _required_weights(self, recipe: str, seed: int) -> Path:
        path = self.weights(recipe, seed)
        if path is None:
            raise MissingError(self._missing.get((recipe, seed), f"the weights of {recipe} were removed."))
        return path


def _check_recipe(path: Path, recipe: str, seed: int) -> None:
    """Raise InputError if the weights were not trained by the recipe, apart from what a short training changes."""
    expected = recipes.find(recipe)
    inside = zoo.prior_recipe(path) if isinstance(expected, GenerativeRecipe) else zoo.recipe(path)
    may_differ = ("epochs",) if isinstance(expected, GenerativeRecipe) else ("epochs", "decay")
    chosen = {name: getattr(inside.training, name) for name in may_differ}
    schedule: Any = replace(expected.training, **chosen, seed=seed)  # of a classifier or a generative model
    model = {**expected.model, **{name: inside.model[name] for name in ("dropout",) if name in inside.model}}
    same = inside == replace(expected, text=inside.text, training=schedule, model=model)
    published = SOURCES[expected.data].content.get("train") if expected.data in SOURCES else None
    used = tensor_files.load_tensors(path)[1].get("data")
    if not same or (published and used and used != published):
        raise InputError(
            f"{path} was not trained by the recipe {recipe} with seed {seed} on all of {expected.data}; move its "
            "folder to train it again, or choose another folder for runs."
        )


def bundled_weights(recipe: str, seed: int) -> Path | None:
    """Weights of a training that this package contains; None if it does not."""
    return zoo.weights_path(recipe) if seed == 0 and recipe in (*zoo.names(), *zoo.prior_names()) else None
