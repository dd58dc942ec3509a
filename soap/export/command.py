"""`soap export`: write a model and its purifier as ONNX files, and check them against torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import data as library
from soap import zoo
from soap._files import atomic
from soap.auxiliary import JointModel
from soap.cli.console import Console, command
from soap.cli.options import DataOptions, Gradient, ModelName, PurifierOptions, default
from soap.cli.tables import percent, size, table
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation import PAPER
from soap.export.checking import MIN_AGREEMENT, PartAgreement, append_check, check_export
from soap.export.onnx_files import OPSETS, ExportedFiles
from soap.export.onnx_files import export as write_onnx
from soap.export.parts import PARTS
from soap.recipes import Recipe
from soap.recipes.attacks import attacks_by_name, paper_data_set
from soap.recipes.purifiers import parse_radius
from soap.shapes import Tensor

EXIT_DISAGREES = 1

ATTACK_BATCH = 250
"""Images attacked at a time."""

BUNDLED_SUBSETS = {"mnist": "mnist-mini"}
"""The bundled subset of a published data set."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DataOptions):
    """Options of --check."""

    check: Annotated[
        bool, typer.Option("--check", help="Run the files with onnxruntime on attacked images, and compare with torch.")
    ] = False
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="With --check: the first N images.")] = 1000
    batch: Annotated[int, typer.Option("--batch", min=1, help="With --check: images processed at a time.")] = 32
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="FILE", help="With --check: append the result to this JSONL file."),
    ] = None


def export(
    console: Console,
    *,
    model: ModelName,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files.")],
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME",
            help=f"{', '.join(PARTS[:-1])} or {PARTS[-1]}; repeat for more. {default('all that the model has')}",
        ),
    ] = None,
    eps: Annotated[
        str,
        typer.Option(
            "--eps", "--eps-pfy", metavar="CHOICE", help="Radius of the whole: min-aux, or a number like 8/255."
        ),
    ] = "min-aux",
    settings: PurifierOptions,
    gradient: Gradient = None,
    opset: Annotated[
        int, typer.Option("--opset", metavar="N", help=f"Version of the ONNX operators, {OPSETS[0]} to {OPSETS[1]}.")
    ] = 20,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files in --out.")] = False,
    checking: CheckOptions,
) -> None:
    """Write a model as ONNX files, which onnxruntime runs without torch; batches of any size, images in [0, 1].

    classifier: images to logits. loss: images to the auxiliary loss. step: one purification step. whole: images to
    purified images and their logits, with all steps and the choice of a radius. manifest.json describes the files.

    With --check, exit code 1 unless files and torch give the same label to 99.9 % of the images, attacked by PGD.
    """
    for name, value in (("--data", checking.data), ("--results", checking.results)):
        if value is not None and not checking.check:
            raise InputError(f"{name} needs --check; add it.")
    network, recipe = zoo.load(model, gradient=gradient), zoo.recipe(model)
    atomic.check_writable(out)
    images = _check_images(console, recipe, checking) if checking.check else None
    console.info("Tracing and writing; a deep network takes a minute or two.", level=1)
    purifier = {"eps": parse_radius(eps), "step_size": settings.step_size, "steps": settings.steps}
    made = write_onnx(network, out, parts=part, opset=opset, force=force, **purifier)  # type: ignore[arg-type]
    content: dict[str, Any] = {
        "model": network.name,
        "folder": out,
        "opset": opset,
        "parts": {name: {"file": path, "sha256": atomic.sha256(path)} for name, path in made.paths.items()},
        "purifier": None if made.purifier is None else repr(made.purifier),
    }
    view = table("part", "file", "size", right=("size",))
    for name, path in made.paths.items():
        view.add_row(name, str(path), size(path.stat().st_size))
    if images is None:
        console.result(content, view)
        return
    found, content["check"] = _check(console, network, recipe, made, images, checking.batch)
    if checking.results is not None:
        append_check(checking.results, {key: content[key] for key in ("model", "purifier", "opset")} | content["check"])
    console.result(content, Group(view, _agreement_view(found)))
    if not content["check"]["holds"]:
        _print_disagreement(console, found)
        raise typer.Exit(EXIT_DISAGREES)


def _check_images(console: Console, recipe: Recipe, options: CheckOptions) -> Dataset:
    """The given test images, else those of the recipe, else their bundled subset."""
    present = {one.name for one in library.status(options.data_root) if one.present}
    name = options.data or recipe.data
    if options.data is None and name in BUNDLED_SUBSETS and name not in present:
        name = BUNDLED_SUBSETS[recipe.data]
        console.info(f"{recipe.data} is not present, so {name} is used.")
    return library.load(name, "test", root=options.data_root).take(options.limit)


def _check(
    console: Console, network: JointModel, recipe: Recipe, made: ExportedFiles, images: Dataset, batch: int
) -> tuple[list[PartAgreement], dict[str, Any]]:
    """Attack the bare classifier by the paper's PGD and compare the files with torch on the attacked images."""
    paper = PAPER[paper_data_set(images.name, recipe, network)]
    attack = attacks_by_name(paper, ["pgd"], seed=console.seed)["pgd"]
    attacked: list[Tensor] = []
    with console.progress() as show:
        for x, y in zip(*(torch.split(each, ATTACK_BATCH) for each in (images.x, images.y)), strict=True):
            attacked.append(attack(network, x, y))
            show("attacking", sum(map(len, attacked)), len(images))
        found = check_export(network, made.folder, torch.cat(attacked), purifier=made.purifier, batch=batch, watch=show)
    return found, {
        "data": images.name,
        "data_sha256": images.sha256,
        "images": len(images),
        "attack": repr(attack),
        "batch": batch,
        "holds": all(one.holds for one in found),
        "parts": {one.part: one.as_json() for one in found},
    }


def _agreement_view(found: list[PartAgreement]) -> RenderableType:
    columns = ("agree", "equal pixels", "torch, s", "onnxruntime, s", "torch / onnxruntime")
    view = table("part", *columns, right=columns)
    for one in found:
        pixels = "-" if one.pixels is None else f"{100 * one.pixels:.3f} %"
        times = (f"{one.seconds_torch:.2f}", f"{one.seconds_onnx:.2f}", f"{one.ratio:.2f}")
        view.add_row(one.part, f"{100 * one.agree:.2f} %", pixels, *times)
    agreeing = sum(one.holds for one in found)
    share = f"at least {percent(MIN_AGREEMENT)} of {found[0].images:,} images"
    return Group(view, Text(f"{agreeing} of {len(found)} parts agree with torch on {share}."))


def _print_disagreement(console: Console, found: list[PartAgreement]) -> None:
    worst = min(found, key=lambda one: one.agree)
    console.info(
        f"{worst.part} agrees with torch on {100 * worst.agree:.2f} % of {worst.images:,} images, expected at least "
        f"{percent(MIN_AGREEMENT)}; do not use these files if labels must equal those of torch."
    )
    for one in found:
        if one.double_torch is not None and one.double_onnx is not None:
            console.info(
                f"{one.part}: torch in double precision agrees with torch on {100 * one.double_torch:.2f} %, "
                f"with the file on {100 * one.double_onnx:.2f} %."
            )


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "export", example="soap export mnist-cnn-dr --out onnx --check", without=("device",))(export)
