"""Trained models by name: weights files, each with its recipe inside and its result rows beside it.

The folder also holds the generative models that purifiers use, under names of their own.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from soap import hub, recipes, validate
from soap._files import tensor_files
from soap._runtime import devices
from soap.auxiliary import Consistency, JointModel
from soap.auxiliary.consistency import GRADIENTS
from soap.auxiliary.serialization import METADATA_KEY, class_list
from soap.errors import FileError, InputError, unknown
from soap.recipes import GenerativeRecipe, Recipe, generative
from soap.recipes.own_network import Factory, load_own
from soap.recipes.recipe import AnyRecipe, class_names
from soap.recipes.typed_options import parameter_limit
from soap.shapes import Tensor
from soap.specs import PriorTraining, TrainingSpec

MAX_MISSING_TENSORS = 1000
"""Tensors that a recipe may have beyond those of the file; the error then names a missing one."""

Built = TypeVar("Built", bound=nn.Module)


def names() -> list[str]:
    """Return the names of the bundled classifiers."""
    return sorted(_bundled() - {*generative.names()})


def prior_names() -> list[str]:
    """Return the names of the bundled generative models."""
    return sorted(_bundled() & {*generative.names()})


def folder() -> Path:
    """Return the folder of the bundled weights and their result rows."""
    return Path(str(resources.files("soap") / "zoo"))


def weights_path(name: str | Path) -> Path:
    """Return the weights' file of a bundled model or of one on the hub (`hf://`), or the path itself."""
    if str(name).startswith(hub.SCHEME):
        return hub.fetch(str(name))
    if str(name).endswith(".safetensors"):
        return Path(name)
    if str(name) not in _bundled():
        if str(name) in (*recipes.names(), *generative.names()):
            raise InputError(
                f"{name} is a recipe whose weights are not bundled; train them with `soap train {name}`, then pass the "
                "path of last.safetensors instead of the name (for a purifier's model: --prior PATH)."
            )
        raise unknown("model", str(name), _bundled())
    return folder() / f"{name}.safetensors"


def recipe(name: str | Path) -> Recipe:
    """Return the recipe inside a model's weights."""
    path = weights_path(name)
    return _recipe(path, tensor_files.load_tensors(path)[1], Recipe)


def load(
    name: str | Path,
    *,
    device: str | torch.device = "cpu",
    gradient: str | None = None,
    module: Factory | None = None,
) -> JointModel:
    """Load a trained model in evaluation mode: a bundled name, the path of a .safetensors file, or `hf://owner/name`.

    `hf://owner/name@revision` downloads a model from the Hugging Face Hub; its `source` then names the commit. The file
    contains only data; nothing in it is executed. gradient: for models with label consistency, the gradient to purify
    by ("paper", "stop" or "exact") instead of its own. module: for a file of `soap.fit`, which contains no network: a
    function or class that returns the network, or its name "package:function", imported from the current folder.
    """
    source = hub.pinned(str(name))
    path = weights_path(source)
    tensors, metadata = tensor_files.load_tensors(path)
    if METADATA_KEY in metadata:
        if module is None:
            raise InputError(
                f"{path} holds the weights of your own network, but not its code; name the function or class that "
                "returns the network: module=Classifier in Python, --module nets:Classifier on the command line."
            )
        model = load_own(path, module)
    else:
        plan = _recipe(path, metadata, Recipe)
        if module is not None:
            raise InputError(f"{name} contains the recipe of its network, so it needs no module; omit module.")
        model = _filled(lambda: recipes.build(plan), tensors, path)
        model.training_spec = _training_spec(plan, metadata)
        model.class_names = _class_names(path, metadata, plan, model.classes)
    if gradient is not None:
        validate.choice("gradient", gradient, GRADIENTS)
        if not isinstance(model.task, Consistency):
            raise InputError(
                f"gradient is {gradient!r}, but only the task 'consistency' has a choice of gradients; "
                f"the task of {model.name} is {type(model.task).__name__}."
            )
        model.task.gradient = gradient
    model.source = source
    return model.to(devices.pick_device(str(device))).eval()


def is_prior(name: str | Path) -> bool:
    """Return whether a weights file holds a generative model."""
    path = weights_path(name)
    metadata = tensor_files.load_tensors(path)[1]
    return METADATA_KEY not in metadata and isinstance(_recipe(path, metadata), GenerativeRecipe)


def prior_recipe(name: str | Path) -> GenerativeRecipe:
    """Return the recipe inside a generative model's weights."""
    path = weights_path(name)
    return _recipe(path, tensor_files.load_tensors(path)[1], GenerativeRecipe)


def load_prior(name: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """Load a trained generative model in evaluation mode, by the name of a bundled one or the path of its file.

    It has its recipe's `name` and, as `purification`, the settings of the purifier that uses it:
    `soap.purifiers.DefenseGAN(prior, **prior.purification)`.
    """
    path = weights_path(name)
    tensors, metadata = tensor_files.load_tensors(path)
    plan = _recipe(path, metadata, GenerativeRecipe)
    model: Any = _filled(lambda: generative.network(plan), tensors, path)
    with _recipe_errors(path):
        generative.attach_purifier(plan, model)
    model.training_spec = PriorTraining(name=plan.name, epochs=plan.training.epochs, seed=plan.training.seed)
    prior: nn.Module = model.to(devices.pick_device(str(device))).eval()
    return prior


def _bundled() -> set[str]:
    return {path.stem for path in folder().glob("*.safetensors")}


def _filled(build: Callable[[], Built], tensors: dict[str, Tensor], path: Path) -> Built:
    """Build the recipe's model and load the file's weights into it.

    It is first built on the meta device, without memory and with a limit on its parameters, because a short untrusted
    recipe can describe a network of any size.
    """
    with _recipe_errors(path):
        with torch.device("meta"), parameter_limit(len(tensors) + MAX_MISSING_TENSORS):
            wanted = build().state_dict()
            tensor_files.check_shapes(path, tensors, wanted, "weights and recipe do not belong together")
        model = build()
    model.load_state_dict(tensors)
    return model


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


def _class_names(path: Path, metadata: Mapping[str, str], plan: Recipe, classes: int) -> tuple[str, ...]:
    """The names of the classes: those of the training data in the file, else of the recipe's published data set."""
    if "classes" not in metadata:
        return class_names(plan, classes)
    try:
        names = class_list(json.loads(metadata["classes"]))
    except (RecursionError, ValueError) as error:
        raise FileError(f"{path}: its class names cannot be read ({error}); train it again.") from error
    if len(names) != classes:
        raise FileError(f"{path}: it names {len(names)} classes, but its recipe has {classes}; train it again.")
    return names


def _recipe(path: Path, metadata: dict[str, str], kind: type[AnyRecipe] | None = None) -> AnyRecipe:
    """Return the recipe in a file's metadata; raise if it is not of the expected kind."""
    if "recipe" not in metadata:
        raise FileError(f"{path}: contains no recipe; expected weights of `soap train` or `soap.fit`.")
    with _recipe_errors(path):
        found = recipes.parse_any(metadata["recipe"], str(path))
    if kind is Recipe and not isinstance(found, Recipe):
        raise InputError(
            f"{path} holds a generative model, expected a classifier; use it with `soap purify --with` or load it with "
            "soap.zoo.load_prior."
        )
    if kind is GenerativeRecipe and not isinstance(found, GenerativeRecipe):
        raise InputError(
            f"{path} holds a classifier, expected a generative model, e.g. one of `soap train defense-gan-mnist`."
        )
    return found  # type: ignore[return-value]  # of that kind


@contextmanager
def _recipe_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise FileError(f"{path}: the recipe inside does not build ({error}).") from error
