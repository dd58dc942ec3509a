"""Trained models by name: weights, with the recipe that made them inside and their measured rows beside them.

Generative models, which purifiers use, lie in the same folder and have names of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from soap import recipes, validate
from soap._files import tensor_files
from soap._runtime import devices
from soap.auxiliary import JointModel
from soap.auxiliary.consistency import GRADIENTS
from soap.errors import FileError, InputError, unknown
from soap.recipes import Recipe, generative
from soap.recipes.bounds import at_most
from soap.recipes.generative import GenerativeRecipe
from soap.shapes import Tensor
from soap.specs import TrainingSpec

SPARE = 1000
"""Parameters that a recipe may ask for beyond those of the file: the error then says which of them is wanting."""

Built = TypeVar("Built", bound=nn.Module)


def names() -> list[str]:
    """The bundled classifiers."""
    return sorted(_bundled() - {*generative.names()})


def prior_names() -> list[str]:
    """The bundled generative models."""
    return sorted(_bundled() & {*generative.names()})


def folder() -> Path:
    """Where the bundled weights and their result rows lie."""
    return Path(str(resources.files("soap") / "zoo"))


def weights_path(name: str | Path) -> Path:
    """The weights' file of a bundled model of either sort, or the path itself."""
    if str(name).endswith(".safetensors"):
        return Path(name)
    if str(name) not in _bundled():
        if str(name) in (*recipes.names(), *generative.names()):
            raise InputError(
                f"{name} is a recipe whose weights are not bundled; train them with `soap train {name}`, then give the "
                "path of last.safetensors instead of the name (of a purifier's model: --prior PATH)."
            )
        raise unknown("model", str(name), _bundled())
    return folder() / f"{name}.safetensors"


def recipe(name: str | Path) -> Recipe:
    """The recipe inside a model's weights."""
    path = weights_path(name)
    return _recipe(path, tensor_files.load_tensors(path)[1])


def load(name: str | Path, *, device: str | torch.device = "cpu", gradient: str | None = None) -> JointModel:
    """A trained model in evaluation mode: a bundled one by name, or any by the path of its .safetensors file.

    The file is data alone; nothing in it is executed. gradient: for models with label consistency, the gradient
    to purify by ("paper", "stop" or "exact") instead of the recipe's.
    """
    path = weights_path(name)
    tensors, metadata = tensor_files.load_tensors(path)
    plan = _recipe(path, metadata)
    if gradient is not None:
        if plan.task != "consistency":
            raise InputError(
                f"gradient is {gradient!r}, but only the task 'consistency' has a choice of gradient; "
                f"the task of {plan.name} is {plan.task!r}."
            )
        validate.choice("gradient", gradient, GRADIENTS)
        plan = replace(plan, auxiliary={**plan.auxiliary, "gradient": gradient})
    model = _filled(lambda: recipes.build(plan), lambda: recipes.build(plan), tensors, path)
    model.training_spec = _training_spec(plan, metadata)
    return model.to(devices.pick_device(str(device))).eval()


def is_prior(name: str | Path) -> bool:
    """Whether a model's weights are those of a generative one."""
    path = weights_path(name)
    return generative.is_generative(_text(path, tensor_files.load_tensors(path)[1]))


def prior_recipe(name: str | Path) -> GenerativeRecipe:
    """The recipe inside a generative model's weights."""
    path = weights_path(name)
    return _prior_recipe(path, tensor_files.load_tensors(path)[1])


def load_prior(name: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """A trained generative model in evaluation mode: a bundled one by name, or any by the path of its file.

    It carries its recipe's `name` and, as `purification`, the settings of the purifier that uses it:
    `soap.purifiers.DefenseGAN(prior, **prior.purification)`.
    """
    path = weights_path(name)
    tensors, metadata = tensor_files.load_tensors(path)
    plan = _prior_recipe(path, metadata)
    model = _filled(lambda: generative.network(plan), lambda: generative.build(plan), tensors, path)
    return model.to(devices.pick_device(str(device))).eval()


def _bundled() -> set[str]:
    return {path.stem for path in folder().glob("*.safetensors")}


def _filled(
    outline: Callable[[], nn.Module], build: Callable[[], Built], tensors: dict[str, Tensor], path: Path
) -> Built:
    """The model that the recipe builds, with the file's weights, if they belong there.

    The outline comes first, without memory and with no more parameters than the file may have: a recipe of a few bytes
    may ask for any size.
    """
    try:
        with torch.device("meta"), at_most(len(tensors) + SPARE):
            _check_shapes(outline(), tensors, path)
        model = build()
    except InputError as error:
        raise _does_not_build(path, error) from error
    model.load_state_dict(tensors)
    return model


def _check_shapes(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    wanted = model.state_dict()
    for key in sorted({*wanted, *tensors}):
        got, want = (_described(part, key) for part in (tensors, wanted))
        if got != want:
            raise FileError(f"{path}: tensor {key!r} is {got}, want {want}: weights and recipe do not belong together.")


def _described(tensors: Mapping[str, Tensor], key: str) -> str:
    """Its shape, and its kind where that is not the usual one; half precision is filled into single."""
    if key not in tensors:
        return "nothing"
    tensor = tensors[key]
    kind = "" if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16) else f" of {tensor.dtype}"
    return f"{list(tensor.shape)}{kind}"


def _training_spec(plan: Recipe, metadata: dict[str, str]) -> TrainingSpec:
    """The training of the weights, by their own recipe and metadata."""
    schedule, dropout = plan.training, plan.model.get("dropout")
    published = recipes.read(plan.name).model.get("dropout") if plan.name in recipes.names() else dropout
    return TrainingSpec(
        epochs=schedule.epochs,
        seed=schedule.seed,
        precision=metadata.get("precision", "fp32"),
        decay="cosine" if schedule.decay == "cosine" else None,
        dropout=dropout if dropout != published else None,
        stored=metadata.get("stored"),
    )


def _recipe(path: Path, metadata: dict[str, str]) -> Recipe:
    text = _text(path, metadata)
    if generative.is_generative(text):
        raise InputError(
            f"{path} holds a generative model, want a classifier; purify with it by `soap purify --with`, "
            "or load it by soap.zoo.load_prior."
        )
    try:
        return recipes.parse(text, str(path))
    except InputError as error:
        raise _does_not_build(path, error) from error


def _prior_recipe(path: Path, metadata: dict[str, str]) -> GenerativeRecipe:
    text = _text(path, metadata)
    try:
        if generative.is_generative(text):
            return generative.parse(text, str(path))
        recipes.parse(text, str(path))
    except InputError as error:
        raise _does_not_build(path, error) from error
    raise InputError(f"{path} holds a classifier, want a generative model: one of `soap train defense-gan-mnist`, say.")


def _text(path: Path, metadata: dict[str, str]) -> str:
    if "recipe" not in metadata:
        raise FileError(f"{path}: holds no recipe; want weights written by `soap train`.")
    return metadata["recipe"]


def _does_not_build(path: Path, error: InputError) -> FileError:
    return FileError(f"{path}: the recipe inside does not build ({error}).")
