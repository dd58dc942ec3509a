"""Build the joint model of a recipe, and train the model of a recipe into a folder."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from soap import models
from soap._files import atomic, tensor_files
from soap._runtime import distributed
from soap._runtime.isolation import preserved_random_state
from soap.auxiliary import AuxiliaryTask, Binarity, Consistency, JointModel, Reconstruction, Rotation
from soap.auxiliary.rotation import TURNS
from soap.data import Dataset
from soap.errors import InputError, unknown
from soap.models import DECODERS, Network
from soap.recipes import generative
from soap.recipes.recipe import GenerativeRecipe, Recipe, class_names, revised
from soap.recipes.typed_options import build_errors, call_typed, check_types
from soap.training import Trained, train, train_generative


def build(recipe: Recipe) -> JointModel:
    """Return the recipe's network and task with initial weights, which depend only on the recipe's seed."""
    with preserved_random_state(), build_errors(f"the {recipe.architecture} of {recipe.name}"):
        torch.manual_seed(recipe.training.seed)
        network = _network(recipe.architecture, recipe.model)
        task = None if recipe.task is None else _task(recipe.task, network, recipe.auxiliary)
    model = JointModel(network, task, purification=recipe.purifier, name=recipe.name)
    model.recordable = True  # no network or task of this package waits for the host
    # Convolutions are faster in this layout, and a GPU then uses the same algorithm for every batch size.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _network(name: str, options: Mapping[str, Any]) -> Network:
    if name in models.ARCHITECTURES:
        check_types(models.ARCHITECTURES[name], options, f"option of the {name} architecture")
    return models.build(name, **options)


def _task(name: str, network: Network, options: Mapping[str, Any]) -> AuxiliaryTask:
    makers: dict[str, Callable[..., AuxiliaryTask]] = {
        "reconstruction": partial(_reconstruction, network),
        "rotation": partial(_rotation, network),
        "consistency": _consistency,
        "binarity": lambda: Binarity(),  # its own signature takes any options
    }
    if name not in makers:
        raise unknown("auxiliary task", name, makers)
    task: AuxiliaryTask = call_typed(makers[name], options, "key in [auxiliary]")
    return task


def _reconstruction(network: Network, *, decoder: str, alpha: float, noise: float) -> AuxiliaryTask:
    if decoder not in DECODERS:
        raise unknown("decoder", decoder, DECODERS)
    return Reconstruction(DECODERS[decoder](network.features, network.inputs), alpha=alpha, noise=noise)


def _rotation(network: Network, *, alpha: float, noise: float) -> AuxiliaryTask:
    return Rotation(nn.Linear(network.features[0], TURNS), alpha=alpha, noise=noise)


def _consistency(*, alpha: float, noise: float, gradient: str = "paper") -> AuxiliaryTask:
    return Consistency(alpha=alpha, noise=noise, gradient=gradient)


def make(
    recipe: Recipe | GenerativeRecipe,
    images: Dataset,
    *,
    out: Path,
    device: torch.device,
    precision: str = "fp32",
    compiled: bool = False,
    resume: bool = False,
    watch: Callable[[Any], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train the recipe's model on `images`; write the files of `soap.training` and recipe.toml to `out`.

    The network gets as many classes as `images`. The recipe's text, the precision and the names of the classes are
    stored inside the weights.
    """
    facts: dict[str, str] = {}
    if isinstance(recipe, Recipe):
        recipe = _with_classes(recipe, images)
        if images.classes != class_names(recipe, len(images.classes)):
            facts["classes"] = json.dumps(images.classes)
    options: dict[str, Any] = {"device": device, "precision": precision, "compiled": compiled, "resume": resume}
    facts |= {"recipe": recipe.text, "precision": precision}
    options |= {"out": out, "watch": watch, "stop": stop, "metadata": facts}
    with compile_errors(compiled):
        if isinstance(recipe, GenerativeRecipe):
            done = train_generative(generative.objective(recipe, device), images, recipe.training, **options)
        else:
            options |= {"attack": recipe.adversarial, "certified": recipe.certified}
            done = train(_start(recipe), images, recipe.training, **options)
    if distributed.processes().is_main:
        atomic.write_text(out / "recipe.toml", recipe.text)
    return done


def _with_classes(recipe: Recipe, images: Dataset) -> Recipe:
    """The recipe with the number of classes of the data."""
    count = len(images.classes)
    network = models.ARCHITECTURES.get(recipe.architecture)
    default = None if network is None else inspect.signature(network).parameters["classes"].default
    if network is None or count == recipe.model.get("classes", default):
        return recipe
    if images.classes == tuple(map(str, range(count))) and int(images.y.min()) == 1:
        raise InputError(
            f"the labels of {images.name} run from 1 to {count - 1}, and none is 0, but classes count from 0. Do your "
            "labels count from 1? Subtract 1."
        )
    return revised(recipe, classes=count)


def _start(recipe: Recipe) -> JointModel:
    """The model before training: with initial weights, or with those of the bundled model `start`."""
    model = build(recipe)
    if recipe.start is not None:
        from soap import zoo  # it imports this package

        tensors, _ = tensor_files.load_tensors(zoo.weights_path(recipe.start))
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise InputError(
                f"{recipe.name} cannot start from the weights of {recipe.start}: {error}. Choose a model with the same "
                "network."
            ) from error
    return model


@contextmanager
def compile_errors(compiled: bool) -> Iterator[None]:
    """Turn errors of torch.compile, e.g. for a missing compiler, into an `InputError` with advice."""
    try:
        yield
    except Exception as error:
        if compiled and type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            reason = str(error).splitlines()[0]
            raise InputError(f"torch.compile does not work here ({reason}); train without --compile.") from error
        raise
