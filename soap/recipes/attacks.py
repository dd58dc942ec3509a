"""Attacks by name with the paper's settings for a data set, and with settings given instead of the paper's."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import JointModel
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.recipes.recipe import Recipe


def paper_data_set(data_name: str, recipe: Recipe, model: JointModel) -> str:
    """The data set of `PAPER` whose settings fit `data_name`: itself, else the recipe's, else one with like images."""
    similar = "mnist" if model.input_shape[0] == 1 else "cifar10"
    return next((name for name in (data_name, recipe.data) if name in PAPER), similar)


def paper_radius(data_name: str, recipe: Recipe, model: JointModel) -> float:
    """The radius eps of the paper's PGD on the data set."""
    pgd = PAPER[paper_data_set(data_name, recipe, model)]["pgd"]
    if not isinstance(pgd, PGD):
        raise TypeError(f"PAPER has {pgd!r} as pgd")
    return pgd.eps


def attacks_by_name(
    paper: Mapping[str, Attack], names: Iterable[str], *, seed: int = 0, settings: Mapping[str, float] | None = None
) -> dict[str, Attack]:
    """Attacks out of `paper`; `settings` replace the paper's: FGSM takes eps, PGD takes eps, step_size and steps."""
    given, used = dict(settings or {}), set[str]()
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
