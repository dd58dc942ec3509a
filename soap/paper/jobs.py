"""Jobs behind the paper's tables and figures: which models to train, what to measure, and the cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from soap import recipes
from soap.paper.figure_data import FigureInput
from soap.paper.rows import training_seed
from soap.paper.sweeps import SWEEPS
from soap.paper.tables import TEST_IMAGES, CellQuery
from soap.recipes import GenerativeRecipe, Recipe, generative
from soap.results import Row
from soap.specs import DefenceSpec

ATTACK_PASSES = {"none": 1, "fgsm": 3, "substitute-fcn": 60, "substitute-cnn": 60, "pgd": 120, "df": 600, "cw": 7_500}
"""Approximate network passes of an attack for an image (a gradient counts as three), the cheapest first."""

PURIFIER_PASSES = 40
"""The same for a SOAP purifier with its grid of radii."""

MACS = {"fcn": 1e6, "cnn": 1e7, "resnet18": 4e7, "wide-resnet28": 5e9, "wgan": 5e6, "pixelcnn": 8e9}
"""Approximate multiplications in a pass; the smallest networks are bound by memory and count as larger."""

PRIOR_PASSES = {"wgan": 6_000, "pixelcnn": 4}
"""Passes through a generative model for the purification of an image."""

TERAFLOPS = 10.0
"""Rate for estimates of time: an H200 reached 10.6 TFLOP/s in training a ResNet-18 in fp32 (docs/performance.md)."""

TRAINING_IMAGES = 50_000

CURVE_IMAGES = 1_000
"""Number of test images for the mean losses of a curve."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Train the recipe's model from `seed` for `epochs`."""

    recipe: str
    seed: int
    epochs: int

    @property
    def title(self) -> str:
        """The job in words."""
        return f"{_model_text(self.recipe, self.seed)}: train for {self.epochs} epochs"

    @property
    def work(self) -> float:
        """Approximate number of multiplications."""
        recipe = recipes.find(self.recipe)
        if isinstance(recipe, GenerativeRecipe):
            return 3.0 * TRAINING_IMAGES * self.epochs * MACS[recipe.kind]
        views = {"rotation": 4, "consistency": 2}.get(recipe.task or "", 1)
        attacked = 0 if recipe.adversarial is None else getattr(recipe.adversarial, "steps", 1)
        return 3.0 * (views + attacked) * TRAINING_IMAGES * self.epochs * _macs(recipe)


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """Run one attack on one trained model for `n` images; evaluate the bare classifier and every purifier.

    purified: the cells with a purifier.
    """

    recipe: str
    seed: int
    attack: str
    n: int
    purified: tuple[CellQuery, ...] = ()

    @property
    def title(self) -> str:
        """The job in words."""
        behind = ", ".join(["bare", *(cell.purifier_text for cell in self.purified)])
        return f"{_model_text(self.recipe, self.seed)}: {self.attack} on {self.n:,} images, {behind}"

    @property
    def work(self) -> float:
        """Approximate number of multiplications."""
        kinds = [generative.read(cell.prior).kind for cell in self.purified if cell.prior is not None]
        by_priors = sum(PRIOR_PASSES[kind] * MACS[kind] for kind in kinds)
        passes = ATTACK_PASSES[self.attack] + PURIFIER_PASSES * (len(self.purified) - len(kinds))
        return self.n * (passes * _macs(recipes.read(self.recipe)) + by_priors)


@dataclass(frozen=True, kw_only=True)
class FigureJob:
    """Measure an input of a figure on `n` images."""

    source: FigureInput
    n: int
    seed: int = 0

    @property
    def recipe(self) -> str:
        """The recipe of the model."""
        return self.source.model

    @property
    def title(self) -> str:
        """The job in words."""
        return f"{self.source.need}, {self.n:,} images"

    @property
    def work(self) -> float:
        """Approximate number of multiplications; examples are ten images under every attack."""
        macs = _macs(recipes.read(self.recipe))
        if self.source.kind == "examples":
            return 10 * sum(ATTACK_PASSES.values()) * macs
        cells = SWEEPS[self.source.kind].size if self.source.kind in SWEEPS else 1
        return self.n * cells * (ATTACK_PASSES["pgd"] + PURIFIER_PASSES) * macs


Job = TrainingJob | EvaluationJob | FigureJob


def estimated_hours(jobs: Iterable[Job]) -> float:
    """Hours for the jobs at `TERAFLOPS`, to an order of magnitude. A multiplication comes with an addition."""
    return sum(2 * job.work for job in jobs) / (TERAFLOPS * 1e12 * 3600)


Weights = Callable[[str, int], Path | None]
"""Called with a recipe and a seed: the file of the weights, or None if they must be trained."""


def plan_jobs(
    queries: Iterable[CellQuery],
    rows: Iterable[Row],
    *,
    weights: Weights,
    epochs: int | None = None,
    seeds: Sequence[int] = (0,),
    limit: Mapping[str, int] | None = None,
) -> list[Job]:
    """Jobs for the cells that no row fills: model by model, trained if needed, cheap attacks first.

    epochs: largest number to train for. seeds: a row is needed for each of these trainings. limit: largest number of
    images by attack.
    """
    limits, cells, known = limit or {}, list(queries), list(rows)
    groups: dict[tuple[int, str], dict[tuple[str, int], dict[DefenceSpec, CellQuery]]] = {}
    for seed in seeds:
        trained = [row for row in known if training_seed(row) == seed]
        for cell in cells:
            n = min(cell.n, limits.get(cell.attack, cell.n))
            if not any(row.n >= n for row in cell.matching(trained)):
                defences = groups.setdefault((seed, cell.recipe), {}).setdefault((cell.attack, n), {})
                defences[cell.defence] = cell
    jobs: list[Job] = []
    for (seed, recipe), attacks in groups.items():
        priors = [cell.prior for defences in attacks.values() for cell in defences.values() if cell.prior is not None]
        # All trainings of a classifier are measured behind the same training of a prior: seed 0.
        needed = dict.fromkeys([(recipe, seed), *((prior, 0) for prior in priors)])
        jobs += [job for job in _trainings(needed, weights, epochs) if job not in jobs]
        for (attack, n), defences in sorted(attacks.items(), key=lambda item: list(ATTACK_PASSES).index(item[0][0])):
            purified = tuple(cell for defence, cell in defences.items() if defence.purifies)
            jobs.append(EvaluationJob(recipe=recipe, seed=seed, attack=attack, n=n, purified=purified))
    return jobs


def plan_figure(
    inputs: Iterable[FigureInput], *, weights: Weights, epochs: int | None = None, limit: int | None = None
) -> list[Job]:
    """Jobs for missing inputs of a figure, model by model, trained if needed. limit: largest number of images."""
    jobs: list[Job] = []
    for source in inputs:
        jobs += _trainings([(source.model, 0)], weights, epochs)
        n = min(CURVE_IMAGES, limit or CURVE_IMAGES) if source.kind == "curve" else limit or TEST_IMAGES
        jobs.append(FigureJob(source=source, n=TEST_IMAGES if source.kind == "examples" else n))
    return jobs


def _trainings(needed: Iterable[tuple[str, int]], weights: Weights, epochs: int | None) -> list[Job]:
    """Jobs that train the recipes and seeds without weights."""
    jobs: list[Job] = []
    for name, seed in needed:
        own = recipes.find(name).training.epochs
        if weights(name, seed) is None:
            jobs.append(TrainingJob(recipe=name, seed=seed, epochs=min(own, epochs or own)))
    return jobs


def _model_text(recipe: str, seed: int) -> str:
    return f"{recipe}, seed {seed}" if seed else recipe


def _macs(recipe: Recipe) -> float:
    return MACS.get(recipe.architecture, MACS["resnet18"])
