"""`soap export`: write a model and its purifier as ONNX files, and check them against torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from soap import data as library
from soap._files import atomic
from soap.cli.console import Console, command, percent, size, table
from soap.cli.options import DataOptions, Gradient, ModelOptions, PurifierOptions, option
from soap.data import Dataset
from soap.errors import InputError
from soap.onnx_export.checking import MIN_AGREEMENT, PartAgreement, check_attacked_images
from soap.onnx_export.onnx_files import DEFAULT_OPSET, OPSETS, PARTS
from soap.onnx_export.onnx_files import export as write_onnx
from soap.onnx_export.triton import write_triton_repository
from soap.recipes.purifiers import parse_radius
from soap.recipes.trained_model import TrainedModel

EXIT_DISAGREES = 1

BUNDLED_SUBSETS = {"mnist": "mnist-mini"}
"""The bundled subset of a published data set."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DataOptions):
    """Options of --check."""

    check: Annotated[
        bool, typer.Option("--check", help="Run the files with onnxruntime on attacked images, and compare with torch.")
    ] = False
    limit: Annotated[int, option("N", "With --check: the first N images.", min=1)] = 1000
    batch_size: Annotated[int, option("N", "With --check: images processed at a time.", min=1)] = 32
    results: Annotated[Path | None, option("FILE", "With --check: append the result to this JSONL file.")] = None


@command("export", example="soap export mnist-cnn-dr --out onnx --check", without=("device",))
def export(
    console: Console,
    *,
    model: ModelOptions,
    out: Annotated[Path, option("DIR", "Folder for the files.")],
    part: Annotated[
        list[str] | None,
        option("NAME", f"{', '.join(PARTS[:-1])} or {PARTS[-1]}; repeat for more.", default="all that the model has"),
    ] = None,
    eps: Annotated[
        str, option("CHOICE", "Radius of the whole: min-aux, or a number like 8/255.", "--eps", "--eps-pfy")
    ] = "min-aux",
    settings: PurifierOptions,
    gradient: Gradient = None,
    opset: Annotated[int, option("N", f"Version of the ONNX operators, {OPSETS[0]} to {OPSETS[1]}.")] = DEFAULT_OPSET,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files in --out.")] = False,
    triton: Annotated[Path | None, option("DIR", "Also add the parts to this Triton model repository.")] = None,
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
    trained = model.open("cpu", gradient)
    for folder in (out, triton or out):
        atomic.check_writable(folder)
    images = _check_images(console, trained, checking) if checking.check else None
    console.info("Tracing and writing; a deep network takes a minute or two.", level=1)
    purifier = {"eps": parse_radius(eps), "step_size": settings.step_size, "steps": settings.steps}
    made = write_onnx(trained.model, out, parts=part, opset=opset, force=force, **purifier)  # type: ignore[arg-type]
    repository = [] if triton is None else write_triton_repository(made, triton)
    described = {"model": trained.model.name, "purifier": made.purifier and repr(made.purifier), "opset": opset}
    content: dict[str, Any] = {
        **described,
        "folder": out,
        "parts": {name: {"file": path, "sha256": atomic.sha256(path)} for name, path in made.paths.items()},
        "triton": repository,
    }
    view = table("part", "file", "size", right=("size",))
    for name, path in made.paths.items():
        view.add_row(name, str(path), size(path.stat().st_size))
    for path in repository:
        view.add_row("Triton", str(path), "")
    if images is None:
        console.result(content, view)
        return
    with console.progress() as show:
        found = check_attacked_images(
            trained, made, images, seed=console.seed, batch_size=checking.batch_size, watch=show
        )
    if checking.results is not None:
        found.append_to(checking.results, **described)
    console.result({**content, "check": found.as_json()}, Group(view, _agreement_view(found.parts)))
    if not found.holds:
        _print_disagreement(console, found.parts)
        raise typer.Exit(EXIT_DISAGREES)


def _check_images(console: Console, trained: TrainedModel, options: CheckOptions) -> Dataset:
    """The given test images, else those of the recipe, else their bundled subset."""
    present = {one.name for one in library.status(options.data_root) if one.present}
    name = trained.data_name(options.data)
    if options.data is None and name in BUNDLED_SUBSETS and name not in present:
        name = BUNDLED_SUBSETS[name]
        console.info(f"{trained.data} is not present, so {name} is used.")
    return library.load(name, "test", root=options.data_root).take(options.limit)


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
