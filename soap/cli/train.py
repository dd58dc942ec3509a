"""`soap train`: train a model by its recipe."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from soap import data as library
from soap import recipes, validate
from soap._files import atomic
from soap._runtime import devices
from soap.cli.console import EXIT_INTERRUPTED, Console, command, percent, stop_on_signal
from soap.cli.options import DataOptions, Precision, completion, option
from soap.errors import InputError
from soap.recipes import GenerativeRecipe
from soap.recipes.purifiers import purifier_of
from soap.training import BaseProgress, GenerativeProgress, Progress, checkpoint


def _recipe_names() -> list[str]:
    return [*recipes.names(), *recipes.generative.names()]


@command(
    "train",
    example="soap train mnist-fcn-dr --data mnist-mini --epochs 5 --out runs/trial",
    without=("batch_size",),
    shared=True,
)
def train_command(
    console: Console,
    *,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A bundled recipe (`soap models -v` lists them), or the path of a .toml file.",
            autocompletion=completion(_recipe_names, ".toml"),
        ),
    ],
    epochs: Annotated[int | None, option("N", "Epochs, instead of the recipe's.", min=1)] = None,
    decay: Annotated[str | None, option("NAME", "Of the learning rate: milestones, or cosine for few epochs.")] = None,
    dropout: Annotated[
        float | None,
        option(
            "X",
            "Instead of the network's. Use 0 to train the Wide-ResNet for few epochs: its batch-norm statistics "
            "do not fit evaluation without dropout otherwise.",
            min=0,
            max=1,
        ),
    ] = None,
    seed: Annotated[int | None, option("N", "Instead of the recipe's.", min=0)] = None,
    images: DataOptions,
    limit: Annotated[int | None, option("N", "Only the first N training images, for a trial.", min=1)] = None,
    out: Annotated[Path | None, option("DIR", "Folder of the run.", default="runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    precision: Precision = "fp32",
    compiled: Annotated[
        bool, typer.Option("--compile", help="torch.compile the losses: a slow start, then faster.")
    ] = False,
) -> None:
    """Train a model by a recipe.

    The folder gets last.safetensors, and for a classifier best.safetensors, with the recipe inside, metrics.jsonl,
    recipe.toml and a checkpoint. Ctrl-C saves a checkpoint and stops (a second one stops at once); --resume continues
    with the same result as an uninterrupted run. The batch size is the recipe's.

    Under `accelerate launch -m` or `torchrun -m` several GPUs or machines train together, each on its part of every
    batch; resume with the same number of processes.
    """
    validate.choice("precision", precision, devices.PRECISIONS)
    plan = recipes.find(recipe)
    if isinstance(plan, GenerativeRecipe) and (decay is not None or dropout is not None):
        raise InputError(f"--decay and --dropout are for classifiers; {plan.name} is a generative model.")
    plan = recipes.revised(plan, data=images.data, epochs=epochs, seed=seed, decay=decay, dropout=dropout)
    folder = out or Path("runs") / plan.name
    atomic.check_writable(folder)
    checkpoint.check_folder(folder, resume=resume)
    data = library.load(plan.data, "train", root=images.data_root).take(limit)
    if limit is not None:
        plan = recipes.with_comment(plan, f"Trained on the first {limit} images of the training split alone.")
    with stop_on_signal() as stop, console.progress() as show:

        def watch(progress: BaseProgress) -> None:
            show("training", progress.step, progress.steps, describe(progress))
            if progress.step % (progress.steps // progress.epochs) == 0:
                left = str(timedelta(seconds=round(progress.seconds_left)))
                console.info(f"{describe(progress)}, {left} left", level=1)

        settings: dict[str, Any] = {"precision": precision, "compiled": compiled, "resume": resume}
        done = recipes.make(plan, data, out=folder, device=console.device, watch=watch, stop=stop, **settings)
    kept = ("last",) if isinstance(plan, GenerativeRecipe) else ("best", "last")
    weights = {which: folder / f"{which}.safetensors" for which in kept}
    content = {**asdict(done), "recipe": plan.name, "weights": weights if done.finished else None}
    if not done.finished:
        console.result(content, f"stopped at step {done.step:,}")
        console.info("A checkpoint is saved: run the same command again with --resume to continue.")
        raise typer.Exit(EXIT_INTERRUPTED)
    console.result(content, "\n".join(f"{which} weights: {path}" for which, path in weights.items()))
    if isinstance(plan, GenerativeRecipe):
        console.info(f"Next: soap purify --with {purifier_of(plan)} --prior {weights['last']} PICTURES --out purified")
    else:
        root = f" --data-root {images.data_root}" if images.data_root else ""
        console.info(f"Next: soap evaluate {weights['last']} --attack pgd{root}")


def describe(progress: BaseProgress) -> str:
    """The progress of a training in one line."""
    metrics = ""
    if isinstance(progress, Progress):
        held_out = "" if progress.holdout is None else f" (held out {percent(progress.holdout)})"
        metrics = f"loss {progress.classification:.3f}, aux {progress.auxiliary:.4f}, "
        metrics += f"accuracy {percent(progress.accuracy)}{held_out}, "
    elif isinstance(progress, GenerativeProgress):
        metrics = "".join(f"{name} {value:.4g}, " for name, value in progress.metrics.items())
    return f"epoch {progress.epoch}/{progress.epochs}, {metrics}{progress.images_per_second:,.0f} images/s"
