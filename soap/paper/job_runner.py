"""One job of a reproduction at a time: train a model into its folder, or measure rows of one that is trained."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from soap.evaluation import PAPER, transfer
from soap.evaluation.black_box import SUBSTITUTES, black_box
from soap.paper.planning import Evaluation, Job, Training, recipe_of
from soap.purifiers import SOAP, Purifier
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.purifiers import load_prior
from soap.results import Store
from soap.training import checkpoint

WEIGHTS = "last.safetensors"

Show = Callable[..., None]
"""Called with what is being done, how much is done, of how much, and the seconds left where they are known."""


class MissingError(Exception):
    """A job cannot be done for want of data or weights; the message says what to do."""


@dataclass
class Workshop:
    """Does jobs; keeps the data and the model of the last one at hand for the next."""

    store: Store
    runs: Path
    device: torch.device
    data_root: Path | None
    batch: int
    precision: str
    compiled: bool
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self._images: dict[str, Dataset] = {}  # split -> the set loaded last
        self._models: dict[tuple[Path, str | None], JointModel] = {}
        self._missing: dict[tuple[str, int], str] = {}  # trainings that were skipped, and why
        self._checked: set[Path] = set()

    def do(self, job: Job, show: Show) -> bool:
        """Do the job whole, or return False when asked to stop; MissingError where it cannot be done."""
        if isinstance(job, Evaluation):
            return self.evaluate(job, show)
        try:
            return self.train(job, show)
        except MissingError as problem:
            self._missing[job.recipe, job.seed] = str(problem)
            raise

    def weights(self, recipe: str, seed: int) -> Path | None:
        """The weights of a training, or None where it has not been finished."""
        if seed == 0 and recipe in (*zoo.names(), *zoo.prior_names()):
            return zoo.weights_path(recipe)
        path = run_folder(self.runs, recipe, seed) / WEIGHTS
        if path.exists() and path not in self._checked:
            _check(path, recipe, seed)
            self._checked.add(path)
        return path if path.exists() else None

    def train(self, job: Training, show: Show) -> bool:
        """Train into the run's folder; False when asked to stop."""
        recipe = recipe_of(job.recipe)
        folder = run_folder(self.runs, job.recipe, job.seed)
        options: dict[str, Any] = {
            "images": self.images(recipe.data, "train"),
            "out": folder,
            "device": self.device,
            "precision": self.precision,
            "compiled": self.compiled,
            "resume": (folder / checkpoint.NAME).exists(),
            "watch": lambda at: show(job.kind, at.step, at.steps, at.seconds_left),
            "stop": self.stop,
        }
        if isinstance(recipe, GenerativeRecipe):
            done = generative.make(generative.revised(recipe, epochs=job.epochs, seed=job.seed), **options)
        else:
            done = recipes.make(recipes.revised(recipe, epochs=job.epochs, seed=job.seed), **options)
        if done.finished and not (folder / WEIGHTS).exists():
            raise MissingError(
                f"{folder}: the checkpoint is that of the last step, but {WEIGHTS} is missing; remove "
                f"{checkpoint.NAME} there to train it again."
            )
        return done.finished

    def evaluate(self, job: Evaluation, show: Show) -> bool:
        """Measure the job's rows into the store; False when asked to stop."""
        path = self._needed(job.recipe, job.seed)
        name = recipes.read(job.recipe).data
        model = self.model(path, None)
        purifiers: list[Purifier] = [
            *(SOAP(self.model(path, gradient), choice) for choice, gradient in job.purifiers),
            *(self.by_prior(prior) for prior in job.priors),
        ]
        images = self.images(name, "test")
        if job.attack in SUBSTITUTES:
            settings = SUBSTITUTES[job.attack]
            rows = black_box(
                model,
                images.take(job.n + settings.seeds),
                {job.attack: settings},
                purifiers,
                store=self.store,
                batch=self.batch,
                watch=show,
                stop=self.stop,
            )
        else:
            rows = transfer(
                model,
                images.take(job.n),
                {job.attack: PAPER[name][job.attack]},
                purifiers,
                store=self.store,
                batch=self.batch,
                watch=show,
                stop=self.stop,
            )
        return len(rows) == 1 + len(purifiers)

    def model(self, path: Path, gradient: str | None) -> JointModel:
        """The model with those weights; only one set of weights is kept."""
        self._models = {key: model for key, model in self._models.items() if key[0] == path}
        if (path, gradient) not in self._models:
            self._models[path, gradient] = zoo.load(path, device=self.device, gradient=gradient)
        return self._models[path, gradient]

    def by_prior(self, name: str) -> Purifier:
        """The purifier that uses a generative model, with the settings of its recipe."""
        return generative.purifier(generative.read(name), load_prior(self._needed(name, 0), device=self.device))

    def _needed(self, recipe: str, seed: int) -> Path:
        """The weights of a training, which must be there."""
        path = self.weights(recipe, seed)
        if path is None:
            raise MissingError(self._missing.get((recipe, seed), f"the weights of {recipe} are gone."))
        return path

    def images(self, name: str, split: str) -> Dataset:
        """The data set, on the device; only one of a split is kept."""
        kept = self._images.get(split)
        if kept is None or kept.name != name:
            self._images.pop(split, None)
            try:
                kept = library.load(name, split, root=self.data_root).to(self.device)
            except FileError as problem:
                raise MissingError(str(problem)) from problem
            self._images[split] = kept
        return kept


def run_folder(runs: Path, recipe: str, seed: int) -> Path:
    """Where the training of a recipe from a seed lives; for seed 0 it is that of `soap train`."""
    return runs / (f"{recipe}-seed-{seed}" if seed else recipe)


def _check(path: Path, recipe: str, seed: int) -> None:
    """Refuse weights in a run's folder that are not the recipe's but for what a short training changes."""
    meant = recipe_of(recipe)
    inside = zoo.prior_recipe(path) if isinstance(meant, GenerativeRecipe) else zoo.recipe(path)
    freely = ("epochs",) if isinstance(meant, GenerativeRecipe) else ("epochs", "decay")
    chosen = {name: getattr(inside.training, name) for name in freely}
    schedule: Any = replace(meant.training, **chosen, seed=seed)  # of either sort
    model = {**meant.model, **{name: inside.model[name] for name in ("dropout",) if name in inside.model}}
    same = inside == replace(meant, text=inside.text, training=schedule, model=model)
    published = SOURCES[meant.data].content.get("train") if meant.data in SOURCES else None
    seen = tensor_files.load_tensors(path)[1].get("data")
    if not same or (published and seen and seen != published):
        raise InputError(
            f"{path} was not trained by the recipe {recipe} with seed {seed} on all of {meant.data}; move its folder "
            "away to train it again, or name another folder for runs."
        )
