"""`soap train`: a model from its recipe."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from soap import data as library
from soap import recipes, validate
from soap._runtime import devices, interrupts
from soap.cli.options import DataName, DataRoot, RecipeName
from soap.cli.outputs import check_folder
from soap.cli.shell import INTERRUPTED, Shell, command
from soap.cli.tables import percent
from soap.errors import InputError
from soap.recipes import generative
from soap.recipes.generative import GenerativeRecipe
from soap.recipes.purifiers import purifier_of
from soap.training import BaseProgress, GenerativeProgress, Progress, checkpoint


def train(
    shell: Shell,
    recipe: RecipeName,
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="N", min=1, help="Length, instead of the recipe's.")
    ] = None,
    decay: Annotated[
        str | None,
        typer.Option("--decay", metavar="NAME", help="Of the rate: milestones, or cosine for a short training."),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            "--dropout",
            metavar="X",
            min=0,
            max=1,
            help="Instead of the network's: 0 for a short training of the Wide-ResNet, whose batch norms otherwise "
            "expect it in use as well.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="Instead of the recipe's.")] = None,
    data: DataName = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="The first N training images only, for a trial.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of the run. [dim]\\[default: runs/NAME][/dim]"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="fp32, or bf16 for speed on a GPU.")
    ] = "fp32",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile the losses: a slow start, then speed.")] = (
        False
    ),
    data_root: DataRoot = None,
) -> None:
    """Train a model by a recipe.

    The folder gets last.safetensors, and for a classifier best.safetensors, with the recipe inside, metrics.jsonl,
    recipe.toml and a checkpoint. Ctrl-C saves a checkpoint and stops (a second one stops at once); --resume then goes
    on as if nothing had happened. The batch size is the recipe's.

    Under `accelerate launch -m` or `torchrun -m` several GPUs or machines train together, each on its part of every
    batch; they resume as many as they were.
    """
    validate.choice("precision", precision, devices.PRECISIONS)
    plan = recipes.find(recipe)
    kitchen: Any = (
        generative if isinstance(plan, GenerativeRecipe) else recipes
    )  # both know revised, with_comment and make
    changes = {"decay": decay, "dropout": dropout}
    if kitchen is generative:
        if any(value is not None for value in changes.values()):
            raise InputError(f"--decay and --dropout are for classifiers; {plan.name} is a generative model.")
        changes = {}
    plan = kitchen.revised(plan, data=data, epochs=epochs, seed=seed, **changes)
    folder = out or Path("runs") / plan.name
    _check_run(folder, resume)
    images = library.load(plan.data, "train", root=data_root).take(limit)
    if limit is not None:
        plan = kitchen.with_comment(plan, f"Trained on the first {limit} images of the training split alone.")
    with interrupts.stop_on_signal() as stop, shell.progress() as show:

        def watch(progress: BaseProgress) -> None:
            show("training", progress.step, progress.steps, describe(progress))
            if progress.step % (progress.steps // progress.epochs) == 0:
                left = str(timedelta(seconds=round(progress.seconds_left)))
                shell.say(f"{describe(progress)}, {left} left", level=1)

        done = kitchen.make(
            plan,
            images,
            out=folder,
            device=shell.device,
            precision=precision,
            compiled=compiled,
            resume=resume,
            watch=watch,
            stop=stop,
        )
    kept = ("last",) if isinstance(plan, GenerativeRecipe) else ("best", "last")
    weights = {which: folder / f"{which}.safetensors" for which in kept}
    content = {**asdict(done), "recipe": plan.name, "weights": weights}
    if not done.finished:
        shell.result({**content, "weights": None}, f"stopped at step {done.step:,}")
        shell.say("A checkpoint is saved: run the same command again with --resume to go on.")
        raise typer.Exit(INTERRUPTED)
    shell.result(content, "\n".join(f"{which} weights: {path}" for which, path in weights.items()))
    where = f" --data-root {data_root}" if data_root else ""
    if isinstance(plan, GenerativeRecipe):
        shell.say(f"Next: soap purify --with {purifier_of(plan)} --prior {weights['last']} PICTURES --out purified")
    else:
        shell.say(f"Next: soap evaluate {weights['last']} --attack pgd{where}")


def describe(progress: BaseProgress) -> str:
    """Where the run stands, in a line."""
    said = ""
    if isinstance(progress, Progress):
        held = "" if progress.holdout is None else f" (held out {percent(progress.holdout)})"
        said = f"loss {progress.classification:.3f}, aux {progress.auxiliary:.4f}, "
        said += f"accuracy {percent(progress.accuracy)}{held}, "
    elif isinstance(progress, GenerativeProgress):
        said = "".join(f"{name} {value:.4g}, " for name, value in progress.metrics.items())
    return f"epoch {progress.epoch}/{progress.epochs}, {said}{progress.images_per_second:,.0f} images/s"


def _check_run(folder: Path, resume: bool) -> None:
    check_folder(folder)
    there = (folder / checkpoint.NAME).exists()
    if there and not resume:
        raise InputError(f"{folder} holds an earlier run; go on with it by --resume, or choose another --out.")
    if resume and not there:
        raise InputError(f"{folder} holds no checkpoint to go on from; leave out --resume, or name the run by --out.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "soap train mnist-fcn-dr --data mnist-mini --epochs 5 --out runs/trial"
    command(app, "train", example=example, without=("batch",), shared=True)(train)
