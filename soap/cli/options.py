"""Options that several commands share: names that complete in the shell, radii, and an attack's settings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from soap import data, recipes, zoo
from soap.attacks import FGSM, PGD, Attack
from soap.auxiliary import JointModel
from soap.cli.shell import Shell
from soap.errors import InputError, unknown
from soap.evaluation import PAPER
from soap.purifiers.soap import CHOICES
from soap.recipes import Recipe


def number(text: str) -> float:
    """A number, or a fraction like 8/255."""
    try:
        return float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is not a number or a fraction like 8/255.") from None


def radius(text: str) -> float | str:
    """How far to purify: a number, or the name of a way to choose one."""
    if text in CHOICES:
        return text
    try:
        return number(text)
    except typer.BadParameter:
        ways = ", ".join(CHOICES)
        raise InputError(f"--eps-pfy is {text!r}, want {ways}, a number, or a fraction like 8/255.") from None


def _completing(names: Callable[[], Iterable[str]], suffix: str | None = None) -> Callable[[str], list[str]]:
    """Completion by names, and by files that end in `suffix` and the folders on the way to them."""

    def complete(incomplete: str) -> list[str]:
        found = [name for name in names() if name.startswith(incomplete)]
        if suffix is not None:
            part = Path(incomplete)
            folder, start = (part, "") if incomplete.endswith("/") else (part.parent, part.name)
            near = sorted(folder.glob(f"{start}*")) if folder.is_dir() else []
            found += [f"{path}/" for path in near if path.is_dir() and not path.name.startswith(".")]
            found += [str(path) for path in near if path.suffix == suffix]
        return found

    return complete


def data_names() -> list[str]:
    """The data sets that have a name."""
    return [presence.name for presence in data.status()]


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A bundled model (`soap models` lists them), or the path of a .safetensors file.",
        autocompletion=_completing(zoo.names, ".safetensors"),
    ),
]
OneModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="Show this one's card: a bundled model, or the path of a .safetensors file.",
        autocompletion=_completing(zoo.names, ".safetensors"),
    ),
]
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A bundled recipe (`soap models -v` names them), or the path of a .toml file.",
        autocompletion=_completing(lambda: [*recipes.names(), *recipes.generative.names()], ".toml"),
    ),
]
PublishedName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="mnist, cifar10 or cifar100.",
        autocompletion=_completing(lambda: [name for name in data_names() if name != "mnist-mini"]),
    ),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        help="Data set: a name (`soap data list`), a folder of class folders, or an .npz file. "
        "[dim]\\[default: that of the recipe][/dim]",
        autocompletion=_completing(data_names, ".npz"),
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="Where data sets lie. [dim]\\[default: $SOAP_DATA, else the user's cache folder][/dim]",
    ),
]
PictureFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES...",
        help="Image files (PNG, JPEG, ...), folders of them, or .npz files with x.",
        readable=False,  # reading finds out, with exit code 1 as for every other file
    ),
]
Resize = Annotated[bool, typer.Option("--resize", help="Scale images to the model's size (bilinear).")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the images that are made.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is in --out; never an input file.")]
AttackEps = Annotated[
    float | None, typer.Option("--eps", metavar="X", parser=number, help="Radius of fgsm and pgd, e.g. 0.3 or 8/255.")
]
AttackStepSize = Annotated[
    float | None, typer.Option("--step-size", metavar="X", parser=number, help="Step size of pgd.")
]
AttackSteps = Annotated[int | None, typer.Option("--steps", metavar="N", help="Steps of pgd.")]
Gamma = Annotated[
    float | None,
    typer.Option("--step-size", metavar="X", parser=number, help="Gamma. [dim]\\[default: the model's own][/dim]"),
]
PurifierSteps = Annotated[
    int | None, typer.Option("--steps", metavar="N", help="T. [dim]\\[default: the model's own][/dim]")
]
Gradient = Annotated[
    str | None,
    typer.Option(
        "--gradient",
        metavar="NAME",
        help="Label consistency only: paper, stop or exact. [dim]\\[default: that of the recipe][/dim]",
    ),
]
attack_names = _completing(lambda: next(iter(PAPER.values())))


def paper_attacks(shell: Shell, data_name: str, recipe: Recipe, model: JointModel) -> Mapping[str, Attack]:
    """The paper's attacks on a data set by name; on the user's own, those on the recipe's data set or on its like."""
    if data_name in PAPER:
        return PAPER[data_name]
    likeness = recipe.data if recipe.data in PAPER else "mnist" if model.input_shape[0] == 1 else "cifar10"
    shell.say(f"Attacks on {data_name} have the paper's settings for {likeness}.", level=1)
    return PAPER[likeness]


def chosen_attacks(
    paper: Mapping[str, Attack],
    names: Iterable[str],
    *,
    seed: int,
    eps: float | None,
    step_size: float | None,
    steps: int | None,
) -> dict[str, Attack]:
    """Attacks by name, with the settings given here instead of the paper's: fgsm takes eps, pgd all."""
    settings = {"eps": eps, "step_size": step_size, "steps": steps}
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    used: set[str] = set()
    attacks = {}
    for name in names:
        if name not in paper:
            raise unknown("attack", name, paper)
        attack = paper[name]
        if isinstance(attack, PGD):
            attack = replace(attack, seed=seed, **given)
            used |= {*given}
        elif isinstance(attack, FGSM):
            attack = replace(attack, **{key: value for key, value in given.items() if key == "eps"})
            used |= {*given} & {"eps"}
        attacks[name] = attack
    for key in given:
        if key not in used:
            takers = "fgsm and pgd" if key == "eps" else "pgd"
            raise InputError(
                f"--{key.replace('_', '-')} is a setting of {takers} alone, and the attacks are {', '.join(attacks)}; "
                "leave it out, or choose another --attack."
            )
    return attacks
