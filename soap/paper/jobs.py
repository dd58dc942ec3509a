"""Jobs that fill empty cells of the paper's tables: which models to train, which attacks to run, and their cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from soap import recipes, validate
from soap.errors import InputError, unknown
from soap.paper.row_queries import CellQuery, training_seed
from soap.recipes import Recipe, generative
from soap.recipes.generative import GenerativeRecipe
from soap.results import Row
from soap.specs import DefenceSpec

ATTACK_PASSES = {
    "none": 1,
    "fgsm": 3,
    "substitute-fcn": 60,
    "substitute-cnn": 60,
    "pgd": 120,
    "df": 600,
    "cw": 7_500,
}
"""Approximate network passes of an attack for an image (a gradient counts as three), the cheapest first."""

PURIFIER_PASSES = 40
"""The same for a SOAP purifier with its grid of radii."""

MACS = {"fcn": 1e6, "cnn": 1e7, "resnet18": 4e7, "wide-resnet28": 5e9, "wgan": 5e6, "pixelcnn": 8e9}
"""Approximate multiplications in a pass; the smallest networks are bound by memory and count as larger."""

PRIOR_PASSES = {"wgan": 6_000, "pixelcnn": 4}
"""Passes through a generative model for the purification of an image."""

TRAINING_IMAGES = 50_000

PurifierChoice = tuple[str, str | None]
"""How a purifier chooses its radius, and its gradient if that is not the recipe's."""


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

    priors: recipes of generative models whose purifiers are evaluated as well.
    """

    recipe: str
    seed: int
    attack: str
    purifiers: tuple[PurifierChoice, ...]
    n: int
    priors: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The job in words."""
        choices = [choice if gradient is None else f"{choice} ({gradient})" for choice, gradient in self.purifiers]
        behind = ", ".join(["bare", *choices, *self.priors])
        return f"{_model_text(self.recipe, self.seed)}: {self.attack} on {self.n:,} images, {behind}"

    @property
    def work(self) -> float:
        """Approximate number of multiplications."""
        passes = ATTACK_PASSES[self.attack] + PURIFIER_PASSES * len(self.purifiers)
        kinds = [generative.read(name).kind for name in self.priors]
        by_priors = sum(PRIOR_PASSES[kind] * MACS[kind] for kind in kinds)
        return self.n * (passes * _macs(recipes.read(self.recipe)) + by_priors)


Job = TrainingJob | EvaluationJob


def plan_jobs(
    queries: Iterable[CellQuery],
    rows: Iterable[Row],
    *,
    weights: Callable[[str, int], Path | None],
    epochs: int | None = None,
    seeds: Sequence[int] = (0,),
    limit: Mapping[str, int] | None = None,
) -> list[Job]:
    """Jobs for the cells that no row fills: model by model, trained if needed, cheap attacks first.

    weights: file of a recipe and seed, or None if they must be trained. epochs: largest number to train for. seeds: a
    row is needed for each of these trainings. limit: largest number of images by attack.
    """
    limits = limit or {}
    if epochs is not None:
        validate.at_least("epochs", epochs, 1)
    if not seeds:
        raise InputError("got no seed; expected at least one, e.g. seeds=(0,).")
    for seed in seeds:
        validate.at_least("seed", seed, 0)
    cells, known = list(queries), list(rows)
    for attack in (*limits, *(cell.attack for cell in cells)):
        if attack not in ATTACK_PASSES:
            raise unknown("attack", attack, ATTACK_PASSES)
        validate.at_least(f"limit of {attack}", limits.get(attack, 1), 1)
    groups: dict[tuple[int, str], dict[tuple[str, int], dict[DefenceSpec, CellQuery]]] = {}
    for seed in seeds:
        trained = [row for row in known if training_seed(row) == seed]
        for cell in cells:
            n = min(cell.n, limits.get(cell.attack, cell.n))
            if cell.filled_by(trained, n):
                continue
            defences = groups.setdefault((seed, cell.recipe), {}).setdefault((cell.attack, n), {})
            defences[cell.defence] = cell
    jobs: list[Job] = []
    for (seed, recipe), attacks in groups.items():
        priors = [cell.prior for defences in attacks.values() for cell in defences.values() if cell.prior is not None]
        # All trainings of a classifier are measured behind the same training of a prior: seed 0.
        for name, own_seed in dict.fromkeys([(recipe, seed), *((prior, 0) for prior in priors)]):
            own = recipes.find(name).training.epochs
            training = TrainingJob(recipe=name, seed=own_seed, epochs=min(own, epochs or own))
            if weights(name, own_seed) is None and training not in jobs:
                jobs.append(training)
        for (attack, n), defences in sorted(attacks.items(), key=lambda item: list(ATTACK_PASSES).index(item[0][0])):
            behind = [cell for defence, cell in defences.items() if defence.purifies]
            purifiers = tuple((cell.eps_pfy, cell.gradient) for cell in behind if cell.prior is None)
            names = tuple(cell.prior for cell in behind if cell.prior is not None)
            jobs.append(EvaluationJob(recipe=recipe, seed=seed, attack=attack, purifiers=purifiers, n=n, priors=names))
    return jobs


def _model_text(recipe: str, seed: int) -> str:
    return f"{recipe}, seed {seed}" if seed else recipe


def _macs(recipe: Recipe) -> float:
    return MACS.get(recipe.architecture, MACS["resnet18"])
