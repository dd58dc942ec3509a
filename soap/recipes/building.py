"""From a recipe to a joint model with freshly drawn weights."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from soap import models
from soap._runtime.isolation import preserved_random_state
from soap.auxiliary import AuxiliaryTask, Consistency, JointModel, Reconstruction, Rotation
from soap.auxiliary.rotation import TURNS
from soap.errors import unknown
from soap.models import DECODERS, Network
from soap.recipes.bounds import building
from soap.recipes.calling import call_typed, check_types
from soap.recipes.reading import plain
from soap.recipes.recipe import Recipe


def build(recipe: Recipe) -> JointModel:
    """The recipe's network and task; weights depend on the recipe's seed alone."""
    with preserved_random_state(), building(f"the {recipe.architecture} of {recipe.name}"):
        torch.manual_seed(recipe.training.seed)
        network = _network(recipe)
        task = None if recipe.task is None else _task(recipe.task, network, recipe.auxiliary)
    model = JointModel(network, task, purification=recipe.purifier, name=recipe.name)
    model.recordable = True  # the networks and tasks of this package never wait for the host
    # The layout of the weights, not their values: convolutions are faster so, on CPUs and GPUs alike, and a GPU then
    # takes the same algorithm for every batch size.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _network(recipe: Recipe) -> Network:
    name, options = recipe.architecture, {key: plain(value) for key, value in recipe.model.items()}
    if name in models.ARCHITECTURES:
        check_types(models.ARCHITECTURES[name], options, f"option of the {name} architecture")
    return models.build(name, **options)


def _task(name: str, network: Network, options: Mapping[str, Any]) -> AuxiliaryTask:
    makers: dict[str, Callable[..., AuxiliaryTask]] = {
        "reconstruction": _reconstruction,
        "rotation": _rotation,
        "consistency": _consistency,
    }
    if name not in makers:
        raise unknown("auxiliary task", name, makers)
    settings = {key: plain(value) for key, value in options.items()}
    task: AuxiliaryTask = call_typed(partial(makers[name], network), settings, "key in [auxiliary]")
    return task


def _reconstruction(network: Network, *, decoder: str, alpha: float, noise: float) -> AuxiliaryTask:
    if decoder not in DECODERS:
        raise unknown("decoder", decoder, DECODERS)
    return Reconstruction(DECODERS[decoder](network.features, network.inputs), alpha=alpha, noise=noise)


def _rotation(network: Network, *, alpha: float, noise: float) -> AuxiliaryTask:
    return Rotation(nn.Linear(network.features[0], TURNS), alpha=alpha, noise=noise)


def _consistency(network: Network, *, alpha: float, noise: float, gradient: str = "paper") -> AuxiliaryTask:
    return Consistency(alpha=alpha, noise=noise, gradient=gradient)
