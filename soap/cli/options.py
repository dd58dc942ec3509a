"""Options that several commands share: names with shell completion, and dataclasses of options."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from soap import data, recipes, zoo
from soap.errors import InputError
from soap.evaluation import PAPER
from soap.recipes.purifiers import NAMES
from soap.recipes.typed_options import parse_number


def number(text: str) -> float:
    """Parse a number or a fraction like 8/255; an error is one of usage."""
    try:
        return parse_number(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def completion(names: Callable[[], Iterable[str]], suffix: str | None = None) -> Callable[[str], list[str]]:
    """Shell completion by names, by files that end in `suffix`, and by folders."""

    def complete(incomplete: str) -> list[str]:
        found = [name for name in names() if name.startswith(incomplete)]
        if suffix is not None:
            part = Path(incomplete)
            folder, start = (part, "") if incomplete.endswith("/") else (part.parent, part.name)
            entries = sorted(folder.glob(f"{start}*")) if folder.is_dir() else []
            found += [f"{path}/" for path in entries if path.is_dir() and not path.name.startswith(".")]
            found += [str(path) for path in entries if path.suffix == suffix]
        return found

    return complete


def data_names() -> list[str]:
    """The names of all data sets."""
    return [presence.name for presence in data.status()]


def default(text: str) -> str:
    """The note about a default that depends on other options, as typer shows defaults."""
    return f"[dim]\\[default: {text}][/dim]"


attack_names = completion(lambda: next(iter(PAPER.values())))

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A bundled model (`soap models` lists them), or the path of a .safetensors file.",
        autocompletion=completion(zoo.names, ".safetensors"),
    ),
]
PictureFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES...",
        help="Image files (PNG, JPEG, WebP, BMP), folders of them, or .npz files with x.",
        readable=False,  # reading reports it, with exit code 1 as for every other file
    ),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        help=f"Data set: a name (`soap data list`), a folder of class folders, or an .npz file. "
        f"{default('that of the recipe')}",
        autocompletion=completion(data_names, ".npz"),
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help=f"Folder of the data sets. {default('$SOAP_DATA, else the cache folder of the user')}",
    ),
]
Prior = Annotated[
    str | None,
    typer.Option(
        "--prior",
        metavar="PATH",
        help=f"The .safetensors file of the generative model for defense-gan or pixeldefend. "
        f"{default('the bundled one')}",
    ),
]
Gradient = Annotated[
    str | None,
    typer.Option(
        "--gradient",
        metavar="NAME",
        help=f"Label consistency only: paper, stop or exact. {default('that of the recipe')}",
    ),
]
Precision = Annotated[str, typer.Option("--precision", metavar="NAME", help="fp32, or bf16 for speed on a GPU.")]
Resize = Annotated[bool, typer.Option("--resize", help="Scale images to the input size of the model (bilinear).")]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data set, and where it is stored."""

    data: DataName = None
    data_root: DataRoot = None


@dataclass(frozen=True, kw_only=True)
class ImageOptions(DataOptions):
    """Which images to evaluate on."""

    split: Annotated[str, typer.Option("--split", metavar="NAME", help="test or train.")] = "test"
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help=f"Only the first N images. {default('all; with --suite 1000')}"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where to write images."""

    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the written images.")]
    force: Annotated[bool, typer.Option("--force", help="Overwrite files in --out; never an input file.")] = False


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """Settings of an attack that replace the paper's."""

    eps: Annotated[
        float | None,
        typer.Option("--eps", metavar="X", parser=number, help="Radius of fgsm and pgd, e.g. 0.3 or 8/255."),
    ] = None
    step_size: Annotated[
        float | None, typer.Option("--step-size", metavar="X", parser=number, help="Step size of pgd.")
    ] = None
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Steps of pgd.")] = None

    def settings(self) -> dict[str, float]:
        """The given settings by name."""
        given = {"eps": self.eps, "step_size": self.step_size, "steps": self.steps}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PurifierOptions:
    """Settings of a purifier that replace the model's own."""

    step_size: Annotated[
        float | None,
        typer.Option("--step-size", metavar="X", parser=number, help=f"Step size gamma. {default('of the model')}"),
    ] = None
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help=f"Number of steps T. {default('of the model')}")
    ] = None


@dataclass(frozen=True, kw_only=True)
class DefenceOptions:
    """Which purifiers to put before the model."""

    eps_pfy: Annotated[
        list[str] | None,
        typer.Option(
            "--eps-pfy",
            metavar="CHOICE",
            help="Radius of purification: min-aux (chosen for each image), min-aux-batch (one for each --batch, as in "
            "the authors' code), oracle (chosen by the true label: an upper bound, not a defence), a number, or a "
            f"fraction like 8/255; repeat for more. {default('min-aux')}",
        ),
    ] = None
    purifier: Annotated[
        list[str] | None,
        typer.Option(
            "--purifier",
            metavar="NAME",
            help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}; repeat for more. "
            f"{default('soap if the model has an auxiliary task')}",
            autocompletion=completion(lambda: NAMES),
        ),
    ] = None
    prior: Prior = None
    gradient: Gradient = None


def recipe_names() -> list[str]:
    """The bundled recipes of classifiers and of generative models."""
    return [*recipes.names(), *recipes.generative.names()]
