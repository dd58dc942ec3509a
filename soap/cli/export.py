"""`soap export`: a model and its purifier as ONNX files, checked against torch."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Group
from rich.text import Text

from soap import data as library
from soap import zoo
from soap._files import atomic
from soap.attacks import Attack
from soap.auxiliary import JointModel
from soap.bench.row import provenance
from soap.cli.options import (
    DataName,
    DataRoot,
    Force,
    Gamma,
    Gradient,
    ModelName,
    PurifierSteps,
    chosen_attacks,
    paper_attacks,
    radius,
)
from soap.cli.outputs import check_folder
from soap.cli.shell import Shell, command
from soap.cli.tables import percent, size, table
from soap.data import Dataset
from soap.errors import InputError
from soap.export import ENOUGH, OPSETS, PARTS, Agreement, Exported, check
from soap.export import export as write
from soap.export.opening import SCHEMA, needed
from soap.recipes import Recipe

DISAGREES = 1
STAND_IN = {"mnist": "mnist-mini"}
"""What is bundled of a published data set."""


def export(
    shell: Shell,
    model: ModelName,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files.")],
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME",
            help=f"{', '.join(PARTS[:-1])} or {PARTS[-1]}; repeat for more. "
            "[dim]\\[default: all that the model has][/dim]",
        ),
    ] = None,
    eps: Annotated[
        str,
        typer.Option(
            "--eps", "--eps-pfy", metavar="CHOICE", help="Radius of the whole: min-aux, or a number like 8/255."
        ),
    ] = "min-aux",
    step_size: Gamma = None,
    steps: PurifierSteps = None,
    gradient: Gradient = None,
    opset: Annotated[
        int, typer.Option("--opset", metavar="N", help=f"Version of ONNX's operators, {OPSETS[0]} to {OPSETS[1]}.")
    ] = 20,
    force: Force = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run the files by onnxruntime on attacked images, and compare with torch.")
    ] = False,
    data: DataName = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="With --check: the first N images.")] = 1000,
    batch: Annotated[int, typer.Option("--batch", min=1, help="With --check: images handled at a time.")] = 32,
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="FILE", help="With --check: the outcome is appended to this JSONL file."),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Write a model as ONNX files, which onnxruntime runs without torch; batches of any size, images in [0, 1].

    classifier: images to logits. loss: images to the auxiliary loss. step: one purification step. whole: images to
    purified images and their logits, all steps and the choice of a radius inside. manifest.json says what is what.

    With --check, exit code 1 unless files and torch give the same label to 99.9 % of the images, attacked by PGD.
    """
    for name, value in (("--data", data), ("--results", results)):
        if value is not None and not check:
            raise InputError(f"{name} goes with --check alone; add it.")
    subject, recipe = zoo.load(model, gradient=gradient), zoo.recipe(model)
    check_folder(out)
    images = _images(shell, recipe, data, data_root).take(limit) if check else None
    shell.say("Tracing and writing; a deep network takes a minute or two.", level=1)
    made = write(subject, out, parts=part, eps=radius(eps), step_size=step_size, steps=steps, opset=opset, force=force)
    written = {name: {"file": path, "sha256": atomic.sha256(path)} for name, path in made.paths.items()}
    content: dict[str, Any] = {"model": subject.name, "folder": out, "opset": opset, "parts": written}
    content["purifier"] = None if made.purifier is None else repr(made.purifier)
    view = table("part", "file", "size", right=("size",))
    for name, path in made.paths.items():
        view.add_row(name, str(path), size(path.stat().st_size))
    if images is None:
        shell.result(content, view)
        return
    paper = paper_attacks(shell, images.name, recipe, subject)
    attack = chosen_attacks(paper, ["pgd"], seed=shell.seed, eps=None, step_size=None, steps=None)["pgd"]
    found = _checked(shell, subject, made, images, attack, batch)
    content["check"] = row = {
        "data": images.name,
        "data_sha256": images.sha256,
        "images": len(images),
        "attack": repr(attack),
        "batch": batch,
        "holds": all(one.holds for one in found),
        "parts": {one.part: _as_json(one) for one in found},
    }
    if results is not None:
        _append(results, {key: content[key] for key in ("model", "purifier", "opset")} | row)
    shell.result(content, Group(view, _view(found)))
    if not row["holds"]:
        worst = min(found, key=lambda one: one.agree)
        shell.say(
            f"{worst.part} agrees with torch on {100 * worst.agree:.2f} % of {worst.images:,} images, want at least "
            f"{100 * ENOUGH:.1f} %; do not use these files where the labels must be torch's own."
        )
        for one in found:
            if one.double_torch is not None and one.double_onnx is not None:
                shell.say(
                    f"{one.part}: torch in double precision agrees with torch on {100 * one.double_torch:.2f} %, "
                    f"with the file on {100 * one.double_onnx:.2f} %."
                )
        raise typer.Exit(DISAGREES)


def _images(shell: Shell, recipe: Recipe, name: str | None, root: Path | None) -> Dataset:
    """The test images asked for, else those of the recipe, else what is bundled of these."""
    here = {one.name for one in library.status(root) if one.present}
    if name is None and recipe.data in STAND_IN and recipe.data not in here:
        name = STAND_IN[recipe.data]
        shell.say(f"{recipe.data} is not at hand, so {name} it is.")
    return library.load(name or recipe.data, "test", root=root)


def _checked(
    shell: Shell, model: JointModel, made: Exported, images: Dataset, attack: Attack, batch: int
) -> list[Agreement]:
    """Attack the bare classifier, then run the files and torch on what came of it."""
    with shell.progress() as show:
        attacked = []
        for x, y in zip(torch.split(images.x, 250), torch.split(images.y, 250), strict=True):
            attacked.append(attack(model, x, y))
            show("attacking", sum(map(len, attacked)), len(images))
        return check(model, made.folder, torch.cat(attacked), purifier=made.purifier, batch=batch, watch=show)


def _as_json(one: Agreement) -> dict[str, Any]:
    return {
        "agree": one.agree,
        "pixels": one.pixels,
        "seconds_torch": one.seconds_torch,
        "seconds_onnx": one.seconds_onnx,
        "ratio": one.ratio,
        "double_torch": one.double_torch,
        "double_onnx": one.double_onnx,
    }


def _append(path: Path, row: dict[str, Any]) -> None:
    """One line more, with who measured it where and when."""
    place = {**provenance(torch.device("cpu")), "onnxruntime": needed("onnxruntime")[0].__version__}
    with atomic.file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"schema": SCHEMA, **row, "provenance": place}, sort_keys=True) + "\n")


def _view(found: list[Agreement]) -> Group:
    columns = ("agree", "equal pixels", "torch, s", "onnxruntime, s", "torch / onnxruntime")
    view = table("part", *columns, right=columns)
    for one in found:
        pixels = "-" if one.pixels is None else f"{100 * one.pixels:.3f} %"
        times = (f"{one.seconds_torch:.2f}", f"{one.seconds_onnx:.2f}", f"{one.ratio:.2f}")
        view.add_row(one.part, f"{100 * one.agree:.2f} %", pixels, *times)
    held = sum(one.holds for one in found)
    share = f"at least {percent(ENOUGH)} of {found[0].images:,} images"
    return Group(view, Text(f"{held} of {len(found)} parts agree with torch on {share}."))


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "export", example="soap export mnist-cnn-dr --out onnx --check", without=("device",))(export)
