"""Build the untrained joint model of a recipe."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from soap import models
from soap._runtime.isolation import preserved_random_state
from soap.auxiliary import AuxiliaryTask, Consistency, JointModel, Reconstruction, Rotation
from soap.auxiliary.rotation import TURNS
from soap.errors import InputError, SoapError, unknown
from soap.models import DECODERS, Network
from soap.recipes.recipe import Recipe
from soap.recipes.typed_options import call_typed, check_types, python_values


def build(recipe: Recipe) -> JointModel:
    """Return the recipe's network and task with initial weights, which depend only on the recipe's seed."""
    with preserved_random_state(), build_errors(f"the {recipe.architecture} of {recipe.name}"):
        torch.manual_seed(recipe.training.seed)
        network = _network(recipe)
        task = None if recipe.task is None else _task(recipe.task, network, recipe.auxiliary)
    model = JointModel(network, task, purification=recipe.purifier, name=recipe.name)
    model.recordable = True  # no network or task of this package waits for the host
    # Convolutions are faster in this layout, and a GPU then uses the same algorithm for every batch size.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@contextmanager
def build_errors(what: str) -> Iterator[None]:
    """Turn torch's errors about impossible sizes into an `InputError` that names `what`."""
    try:
        yield
    except SoapError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{what} cannot be built ({reason:.200}); check its sizes.") from error


@contextmanager
def parameter_limit(tensors: int) -> Iterator[None]:
    """Raise `InputError` when a network with more than `tensors` parameter tensors is built in this thread."""
    thread, count = threading.get_ident(), itertools.count(1)

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() == thread and next(count) > tensors:
            raise InputError(f"the network has more than {tensors} parameter tensors; check its number of blocks.")

    hook = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        hook.remove()


def _network(recipe: Recipe) -> Network:
    name, options = recipe.architecture, python_values(recipe.model)
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
    task: AuxiliaryTask = call_typed(partial(makers[name], network), python_values(options), "key in [auxiliary]")
    return task


def _reconstruction(network: Network, *, decoder: str, alpha: float, noise: float) -> AuxiliaryTask:
    if decoder not in DECODERS:
        raise unknown("decoder", decoder, DECODERS)
    return Reconstruction(DECODERS[decoder](network.features, network.inputs), alpha=alpha, noise=noise)


def _rotation(network: Network, *, alpha: float, noise: float) -> AuxiliaryTask:
    return Rotation(nn.Linear(network.features[0], TURNS), alpha=alpha, noise=noise)


def _consistency(network: Network, *, alpha: float, noise: float, gradient: str = "paper") -> AuxiliaryTask:
    return Consistency(alpha=alpha, noise=noise, gradient=gradient)
