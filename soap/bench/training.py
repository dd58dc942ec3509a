"""Benchmark of training: epochs of `soap.training.train`."""

import copy
import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional as F

from soap import recipes, training
from soap._runtime import devices
from soap._runtime.isolation import preserved_random_state
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointModel
from soap.bench.inputs import BenchSetup, epoch_images, training_set
from soap.bench.measures import gradient_operations, operations_of, synchronise, with_peak_memory
from soap.bench.results import OURS, BenchRow, bench_row, path_metrics
from soap.data import Dataset
from soap.errors import InputError
from soap.recipes import Recipe
from soap.recipes.building import compile_errors
from soap.shapes import Tensor
from soap.training import Progress

CHECKPOINT_NOTE = "Our epoch includes what it writes; checkpoints are at least ten seconds apart."

UNTIMED_EPOCHS = 2
"""The first warms up; the last, which would also write the weights, never starts."""


def bench_train(
    setup: BenchSetup,
    recipe: Recipe,
    *,
    epochs: int,
    batch_size: int | None = None,
    steps: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
) -> BenchRow:
    """Time `epochs` epochs after one that warms up.

    steps: time only so many steps of each epoch, and scale their time to the whole epoch. compiled: use torch.compile.
    """
    batch_size = batch_size or recipe.training.batch_size
    schedule = replace(recipe.training, epochs=epochs + UNTIMED_EPOCHS, holdout=0, batch_size=batch_size)
    recipe = replace(recipe, training=schedule)
    model = recipes.build(recipe)
    data = training_set(recipe, model, None if steps is None else steps * batch_size, setup.root).to(setup.device)
    if len(data) < batch_size:
        raise InputError(
            f"the batch size is {batch_size}, but there are {len(data)} training images; use a smaller --batch-size."
        )
    measured, whole = len(data) // batch_size, epoch_images(recipe, setup.root) // batch_size
    model = model.to(setup.device)
    with preserved_random_state():
        timed = partial(epoch_seconds, setup, recipe, model, data, precision=precision, compiled=compiled)
        seconds, peak = with_peak_memory(timed, setup.device)
    scaled = {OURS: [one * whole / measured for one in seconds[1:]]}
    notes = [f"{measured} steps were timed and scaled to the {whole} of an epoch."] if measured != whole else []
    return bench_row(
        what="train",
        model=recipe.name,
        weights=f"random, seed {schedule.seed}",
        inputs=f"{data.name}/{data.split}",
        settings=f"{schedule!r}, attack={recipe.adversarial!r}",
        case={
            "batch_size": batch_size,
            "steps": measured,
            "epoch_steps": whole,
            "precision": precision,
            "compiled": str(compiled).lower(),
        },
        paths=path_metrics(scaled, whole * batch_size, {}, {OURS: peak}),
        agreement={},
        operations=image_operations(recipe, model, data, precision) * whole * batch_size,
        rate=setup.rate,
        device=setup.device,
        notes=[*notes, CHECKPOINT_NOTE],
    )


def epoch_seconds(
    setup: BenchSetup, recipe: Recipe, model: JointModel, data: Dataset, *, precision: str, compiled: bool
) -> list[float]:
    """Seconds of each epoch of a copy of the model but the last, which does not start.

    One training makes all epochs, since it may compile or record graphs. It calls `stop` after each step, where the
    clock is read at the end of an epoch.
    """
    count, steps = recipe.training.epochs - 1, len(data) // recipe.training.batch_size
    ends = [_now(setup.device)]
    reached = 0

    def watch(progress: Progress) -> None:
        nonlocal reached
        reached = progress.step

    def stop() -> bool:
        if reached == len(ends) * steps:
            ends.append(_now(setup.device))
            setup.watch("timing", len(ends) - 1, count)
        return len(ends) > count

    if compiled:  # shapes of a model measured before would make this one's dynamic and slower
        torch.compiler.reset()
    with compile_errors(compiled), tempfile.TemporaryDirectory(prefix="soap-bench-") as folder:
        training.train(
            copy.deepcopy(model),
            data,
            recipe.training,
            out=Path(folder),
            attack=recipe.adversarial,
            device=setup.device,
            precision=precision,
            compiled=compiled,
            watch=watch,
            stop=stop,
        )
    return [end - began for began, end in pairwise(ends)]


def image_operations(recipe: Recipe, model: JointModel, data: Dataset, precision: str) -> float:
    """The operations of one image: forward and backward through the joint loss, and the attack."""
    model, attack = copy.deepcopy(model).train(), recipe.adversarial
    x, y = data.x[:2], data.y[:2]
    generator = torch.Generator(x.device).manual_seed(recipe.training.seed)

    def joint_loss(x: Tensor) -> Tensor:
        if not model.purifiable:
            return F.cross_entropy(model(x), y)
        losses = model.auxiliary.losses(model, x, y, generator)
        return losses.classification + model.auxiliary.alpha * losses.auxiliary

    with devices.autocast(x.device, precision):
        total = sum(operations_of(joint_loss, x))
    gradients = attack.steps if isinstance(attack, PGD) else 1 if isinstance(attack, FGSM) else 0
    return total + gradients * sum(gradient_operations(model, model, x)) if gradients else total


def _now(device: torch.device) -> float:
    synchronise(device)
    return time.perf_counter()
