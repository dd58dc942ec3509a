"""A trained model with its recipe: the names of its classes, its data, and the paper's attacks for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from soap import data, hub, zoo
from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import JointModel
from soap.auxiliary.serialization import task_name
from soap.data import Dataset
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.recipes.own_network import Factory
from soap.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A trained model, its recipe (None for a network of the user) and the names of its classes."""

    model: JointModel
    recipe: Recipe | None
    classes: tuple[str, ...]

    @property
    def data(self) -> str | None:
        """The data set of the recipe; None without a recipe."""
        return None if self.recipe is None else self.recipe.data

    @property
    def task(self) -> str | None:
        """The name of the auxiliary task; None if there is none, or it is the user's own."""
        return task_name(self.model.task) if self.recipe is None else self.recipe.task

    def data_name(self, given: str | None) -> str:
        """The given data set, else that of the recipe."""
        name = given or self.data
        if name is None:
            raise InputError(
                f"{self.model.name} has no data set of its own; give --data, e.g. a folder of class folders."
            )
        return name

    def images(
        self, name: str | None = None, split: str = "test", *, root: Path | None = None, limit: int | None = None
    ) -> Dataset:
        """Load a data set (None: the recipe's) to the model's device, its classes numbered as in the model."""
        found = data.load(self.data_name(name), split, root=root).numbered_by(self.classes)
        return found.take(limit).to(next(self.model.parameters()).device)

    def paper_data(self, data_name: str | None = None) -> str:
        """The paper's data set whose attack settings fit a data set (None: the recipe's): itself, or a similar one."""
        return paper_data_set(data_name or self.data, self.recipe, self.model)

    def attack(self, name: str, *, seed: int = 0, settings: Mapping[str, float] | None = None) -> Attack:
        """An attack by name, with the paper's settings for those not given."""
        return self.attacks([name], seed=seed, settings=settings)[name]

    def attacks(
        self,
        names: Iterable[str],
        *,
        data_name: str | None = None,
        seed: int = 0,
        settings: Mapping[str, float] | None = None,
    ) -> dict[str, Attack]:
        """The paper's attacks for a data set (None: the recipe's).

        `settings` replace the paper's: FGSM takes eps, PGD takes eps, step_size and steps.
        """
        paper, given, used = PAPER[self.paper_data(data_name)], dict(settings or {}), set[str]()
        attacks = {}
        for name in names:
            if name not in paper:
                raise unknown("attack", name, paper)
            attack = paper[name]
            if isinstance(attack, PGD):
                attack = replace(attack, seed=seed, **given)  # type: ignore[arg-type]  # steps is an int
                used |= {*given}
            elif isinstance(attack, FGSM):
                attack = replace(attack, eps=given.get("eps", attack.eps))
                used |= {*given} & {"eps"}
            attacks[name] = attack
        for key in given:
            if key not in used:
                takers = "fgsm and pgd" if key == "eps" else "pgd"
                raise InputError(
                    f"{key} is a setting of {takers} only, got the attacks {', '.join(attacks)}; remove it, or choose "
                    "another attack."
                )
        return attacks

    def radius(self, data_name: str) -> float:
        """The radius eps of the paper's PGD for a data set."""
        pgd = PAPER[self.paper_data(data_name)]["pgd"]
        if not isinstance(pgd, PGD):
            raise TypeError(f"PAPER has {pgd!r} as pgd")
        return pgd.eps


def open_model(
    source: str | Path | JointModel,
    *,
    device: str | torch.device = "cpu",
    gradient: str | None = None,
    module: Factory | None = None,
) -> TrainedModel:
    """Load a model as `soap.load` does, with its recipe and class names; a `JointModel` is used as it is."""
    if isinstance(source, JointModel):
        model, recipe = source.eval(), None
    else:
        name = hub.pinned(str(source))
        model = zoo.load(name, device=device, gradient=gradient, module=module)
        recipe = zoo.recipe(name) if module is None else None
    return TrainedModel(model=model, recipe=recipe, classes=model.class_names or tuple(map(str, range(model.classes))))


def paper_data_set(data_name: str | None, recipe: Recipe | None, model: JointModel) -> str:
    """The data set of `PAPER` whose settings fit `data_name`: itself, else the recipe's, else one with like images."""
    similar = "mnist" if model.input_shape[0] == 1 else "cifar10"
    return next((name for name in (data_name, recipe and recipe.data) if name in PAPER), similar)
