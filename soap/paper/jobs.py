"""What has to be trained and measured for cells of the paper that no row fills yet."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from soap import recipes, validate
from soap.errors import InputError, unknown
from soap.paper.wanted import Wanted
from soap.recipes import Recipe, generative
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.naming import BARE
from soap.results import Row

PASSES = {
    "none": 1,
    "fgsm": 3,
    "substitute-fcn": 60,
    "substitute-cnn": 60,
    "pgd": 120,
    "df": 600,
    "cw": 7_500,
}
"""Passes through the network that an attack takes for an image, roughly (a gradient is three), the cheapest first."""

PURIFYING = 40
"""The same for a purifier with its grid of radii."""

MACS = {"fcn": 1e6, "cnn": 1e7, "resnet18": 4e7, "wide-resnet28": 5e9, "wgan": 5e6, "pixelcnn": 8e9}
"""Multiplications in a pass, roughly; the smallest networks wait for memory instead, and count as larger."""

BY_PRIOR = {"wgan": 6_000, "pixelcnn": 4}
"""Passes through a generative model that purifying an image by it takes."""

TRAINING_SET = 50_000

Purifying = tuple[str, str | None]
"""How a purifier chooses its radius, and its gradient where that is not the recipe's own."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Train the recipe's model from `seed`, for `epochs`."""

    recipe: str
    seed: int
    epochs: int

    @property
    def kind(self) -> str:
        """Jobs of a kind take about the same time for the same work."""
        return "train"

    @property
    def title(self) -> str:
        """For people."""
        return f"{_named(self.recipe, self.seed)}: train for {self.epochs} epochs"

    @property
    def work(self) -> float:
        """Multiplications, roughly."""
        plan = recipe_of(self.recipe)
        if isinstance(plan, GenerativeRecipe):
            return 3.0 * TRAINING_SET * self.epochs * MACS[plan.kind]
        views = {"rotation": 4, "consistency": 2}.get(plan.task or "", 1)
        attacked = 0 if plan.adversarial is None else getattr(plan.adversarial, "steps", 1)
        return 3.0 * (views + attacked) * TRAINING_SET * self.epochs * _macs(plan)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Make one attack on one trained model, for `n` images, and score it bare and behind every purifier.

    priors: recipes of generative models, by which it is purified as well.
    """

    recipe: str
    seed: int
    attack: str
    purifiers: tuple[Purifying, ...]
    n: int
    priors: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Jobs of a kind take about the same time for the same work."""
        return self.attack

    @property
    def title(self) -> str:
        """For people."""
        choices = [choice if gradient is None else f"{choice} ({gradient})" for choice, gradient in self.purifiers]
        behind = ", ".join(["bare", *choices, *self.priors])
        return f"{_named(self.recipe, self.seed)}: {self.attack} on {self.n:,} images, {behind}"

    @property
    def work(self) -> float:
        """Multiplications, roughly."""
        passes = PASSES[self.attack] + PURIFYING * len(self.purifiers)
        kinds = [generative.read(name).kind for name in self.priors]
        by_priors = sum(BY_PRIOR[kind] * MACS[kind] for kind in kinds)
        return self.n * (passes * _macs(recipes.read(self.recipe)) + by_priors)


Job = Training | Evaluation


def plan(
    wanted: Iterable[Wanted],
    rows: Iterable[Row],
    *,
    weights: Callable[[str, int], Path | None],
    epochs: int | None = None,
    seeds: Sequence[int] = (0,),
    limit: Mapping[str, int] | None = None,
) -> list[Job]:
    """The jobs that fill the cells no row fills: model by model, each trained where need be, cheap attacks first.

    weights: those of a recipe and a seed, or None where they have to be trained. epochs: train for so many at most.
    seeds: a row is wanted of each of these trainings. limit: the most images for an attack, by its name.
    """
    most = _checked(epochs, seeds, limit or {})
    cells, known = list(wanted), list(rows)
    groups: dict[tuple[int, str], dict[tuple[str, int], dict[str, Wanted]]] = {}
    for seed in seeds:
        trained = [row for row in known if seed_of(row) == seed]
        for cell in cells:
            if cell.attack not in PASSES:
                raise unknown("attack", cell.attack, PASSES)
            n = min(cell.n, most.get(cell.attack, cell.n))
            if filled(cell, trained, n):
                continue
            defences = groups.setdefault((seed, cell.recipe), {}).setdefault((cell.attack, n), {})
            defences[cell.defence] = cell
    jobs: list[Job] = []
    for (seed, recipe), attacks in groups.items():
        priors = [cell.prior for defences in attacks.values() for cell in defences.values() if cell.prior is not None]
        # Whatever training of a classifier is measured, it stands behind the same training of a prior.
        for name, own_seed in dict.fromkeys([(recipe, seed), *((prior, 0) for prior in priors)]):
            own = recipe_of(name).training.epochs
            training = Training(recipe=name, seed=own_seed, epochs=min(own, epochs or own))
            if weights(name, own_seed) is None and training not in jobs:
                jobs.append(training)
        for (attack, n), defences in sorted(attacks.items(), key=lambda item: list(PASSES).index(item[0][0])):
            behind = [cell for defence, cell in defences.items() if defence != BARE]
            purifiers = tuple((cell.eps_pfy, cell.gradient) for cell in behind if cell.prior is None)
            names = tuple(cell.prior for cell in behind if cell.prior is not None)
            jobs.append(Evaluation(recipe=recipe, seed=seed, attack=attack, purifiers=purifiers, n=n, priors=names))
    return jobs


def recipe_of(name: str) -> Recipe | GenerativeRecipe:
    """A recipe of either sort by its name."""
    return generative.read(name) if name in generative.names() else recipes.read(name)


def filled(cell: Wanted, rows: Sequence[Row], n: int) -> bool:
    """Whether a row of at least `n` images fills the cell."""
    return any(row.n >= n for asked in (cell, replace(cell, n=n)) for row in asked.found_in(rows))


def seed_of(row: Row) -> int:
    """The seed of the training behind a row; rows that do not tell are of bundled weights, which have seed 0."""
    told = re.search(r"\bseed (\d+)", row.provenance.training)
    return int(told[1]) if told else 0


def _checked(epochs: int | None, seeds: Sequence[int], limit: Mapping[str, int]) -> Mapping[str, int]:
    if epochs is not None:
        validate.at_least("epochs", epochs, 1)
    if not seeds:
        raise InputError("no seed was named, want at least one, e.g. seeds=(0,).")
    for seed in seeds:
        validate.at_least("seed", seed, 0)
    for attack, images in limit.items():
        if attack not in PASSES:
            raise unknown("attack", attack, PASSES)
        validate.at_least(f"limit of {attack}", images, 1)
    return limit


def _named(recipe: str, seed: int) -> str:
    return f"{recipe}, seed {seed}" if seed else recipe


def _macs(plan: Recipe) -> float:
    return MACS.get(plan.architecture, MACS["resnet18"])
