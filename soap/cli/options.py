"""Options that several commands share: names with shell completion, and dataclasses of options."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from soap import data, zoo
from soap._files import atomic
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation import PAPER
from soap.recipes.purifiers import NAMES, parse_setting
from soap.recipes.trained_model import TrainedModel, open_model
from soap.recipes.typed_options import parse_number
from soap.results import Row, Store


def option(metavar: str, help: str, *names: str, default: str | None = None, **settings: Any) -> Any:
    """A typer option, called like its parameter unless `names` are given.

    default: the note about a default that depends on other options, as typer shows defaults.
    """
    note = "" if default is None else f" [dim]\\[default: {default}][/dim]"
    return typer.Option(*names, metavar=metavar, help=help + note, **settings)


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


attack_names = completion(lambda: next(iter(PAPER.values())))

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A bundled model (`soap models` lists them), the path of a .safetensors file, or hf://owner/name.",
        autocompletion=completion(zoo.names, ".safetensors"),
    ),
]
ModuleName = Annotated[
    str | None,
    option(
        "PACKAGE:NAME",
        "The function or class that returns your own network, for a MODEL file written by soap.fit; imported from "
        "the current folder.",
        default="the network of the recipe in the file",
    ),
]
PICTURE_FILES: Any = typer.Argument(
    metavar="FILES...",
    help="Image files (PNG, JPEG, WebP, BMP), folders of them, or .npz files with x.",
    readable=False,  # reading reports it, with exit code 1 as for every other file
)
RunName = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run of `soap evaluate --suite`.", readable=False)
]
DataName = Annotated[
    str | None,
    option(
        "NAME",
        "Data set: a name (`soap data list`), a folder of class folders, or an .npz file.",
        default="that of the recipe",
        autocompletion=completion(data_names, ".npz"),
    ),
]
DataRoot = Annotated[
    Path | None, option("DIR", "Folder of the data sets.", default="$SOAP_DATA, else the cache folder of the user")
]
Prior = Annotated[
    str | None,
    option(
        "PATH",
        "The .safetensors file of the trained model behind defense-gan, pixeldefend, diffusion or autoencoder.",
        default="the bundled one",
    ),
]
Gradient = Annotated[
    str | None, option("NAME", "Label consistency only: paper, stop or exact.", default="that of the recipe")
]
Precision = Annotated[str, option("NAME", "fp32, or bf16 for speed on a GPU.")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and whose network its weights belong to."""

    model: ModelName
    module: ModuleName = None

    def open(self, device: torch.device | str, gradient: str | None = None) -> TrainedModel:
        """The model on `device`."""
        return open_model(self.model, device=device, gradient=gradient, module=self.module)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data set, and where it is stored."""

    data: DataName = None
    data_root: DataRoot = None


@dataclass(frozen=True, kw_only=True)
class ImageOptions(DataOptions):
    """Which images to evaluate on."""

    split: Annotated[str, option("NAME", "test or train.")] = "test"
    limit: Annotated[int | None, option("N", "Only the first N images.", default="all; with --suite 1000", min=1)] = (
        None
    )
    invert: Annotated[bool, typer.Option("--invert", help="Swap dark and light: for dark digits on white.")] = False

    def load(self, trained: TrainedModel) -> Dataset:
        """The images, on the model's device."""
        found = trained.images(self.data, self.split, root=self.data_root, limit=self.limit)
        return found.inverted() if self.invert else found


@dataclass(frozen=True, kw_only=True)
class RowsOptions:
    """Where to append result rows."""

    out: Annotated[Path | None, option("FILE", "JSONL file to append the rows to.")] = None

    def check(self) -> None:
        """Raise unless the file can be written; call it before long work."""
        if self.out is not None:
            atomic.check_writable(self.out.parent)

    def append(self, rows: Iterable[Row]) -> None:
        """Append the rows to the file, if there is one."""
        if self.out is not None:
            for row in rows:
                Store(self.out).append(row)


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How pictures become inputs of the model."""

    resize: Annotated[bool, typer.Option("--resize", help="Scale images to the input size (bilinear).")] = False
    invert: Annotated[bool, typer.Option("--invert", help="Swap dark and light: for dark digits on white.")] = False


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where to write images."""

    out: Annotated[Path, option("DIR", "Folder for the written images.")]
    force: Annotated[bool, typer.Option("--force", help="Overwrite files in --out; never an input file.")] = False


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """Settings of an attack that replace the paper's."""

    eps: Annotated[float | None, option("X", "Radius of fgsm and pgd, e.g. 0.3 or 8/255.", parser=number)] = None
    step_size: Annotated[float | None, option("X", "Step size of pgd.", parser=number)] = None
    steps: Annotated[int | None, option("N", "Steps of pgd.")] = None

    def settings(self) -> dict[str, float]:
        """The given settings by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PurifierOptions:
    """Settings of a purifier that replace the model's own."""

    step_size: Annotated[float | None, option("X", "Step size gamma.", default="of the model", parser=number)] = None
    steps: Annotated[int | None, option("N", "Number of steps T.", default="of the model")] = None


@dataclass(frozen=True, kw_only=True)
class DefenceOptions:
    """Which purifiers to put before the model."""

    eps_pfy: Annotated[
        list[str] | None,
        option(
            "CHOICE",
            "Radius of purification: min-aux (chosen for each image), min-aux-batch (one for each batch, as in "
            "the authors' code), oracle (chosen by the true label: an upper bound, not a defence), a number, or a "
            "fraction like 8/255; repeat for more.",
            default="min-aux",
        ),
    ] = None
    purifier: Annotated[
        list[str] | None,
        option(
            "NAME",
            f"{', '.join(NAMES[:-1])} or {NAMES[-1]}; repeat for more.",
            default="soap if the model has an auxiliary task",
            autocompletion=completion(lambda: NAMES),
        ),
    ] = None
    purifier_option: Annotated[
        list[str] | None, option("NAME=VALUE", "A setting of --purifier, e.g. bits=1 of bit-depth; repeat for more.")
    ] = None
    prior: Prior = None
    gradient: Gradient = None

    def settings(self) -> dict[str, Any]:
        """The given settings of the purifier by name."""
        return dict(map(parse_setting, self.purifier_option or ()))
