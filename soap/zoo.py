"""Trained models by name: weights, with the recipe that made them inside and their measured rows beside them."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

import torch

from soap import engine, recipes, validate
from soap.auxiliary import JointModel
from soap.auxiliary.consistency import GRADIENTS
from soap.errors import FileError, InputError, unknown
from soap.recipes import Recipe


def names() -> list[str]:
    """The bundled models."""
    return sorted(path.stem for path in folder().glob("*.safetensors"))


def folder() -> Path:
    """Where the bundled weights and their result rows lie."""
    return Path(str(resources.files("soap") / "zoo"))


def weights_path(name: str | Path) -> Path:
    """The weights' file of a bundled model, or the path itself."""
    if str(name).endswith(".safetensors"):
        return Path(name)
    if str(name) not in names():
        if str(name) in recipes.names():
            raise InputError(
                f"{name} is a recipe whose weights are not bundled; train them with `soap train {name}`, "
                "then give the path of last.safetensors."
            )
        raise unknown("model", str(name), names())
    return folder() / f"{name}.safetensors"


def recipe(name: str | Path) -> Recipe:
    """The recipe inside a model's weights."""
    path = weights_path(name)
    return _recipe(path, engine.load_tensors(path)[1])


def load(name: str | Path, *, device: str | torch.device = "cpu", gradient: str | None = None) -> JointModel:
    """A trained model in evaluation mode: a bundled one by name, or any by the path of its .safetensors file.

    The file is data alone; nothing in it is executed. gradient: for models with label consistency, the gradient
    to purify by ("paper", "stop" or "exact") instead of the recipe's.
    """
    path = weights_path(name)
    tensors, metadata = engine.load_tensors(path)
    plan = _recipe(path, metadata)
    if gradient is not None:
        if plan.task != "consistency":
            raise InputError(
                f"gradient is {gradient!r}, but only the task 'consistency' has a choice of gradient; "
                f"the task of {plan.name} is {plan.task!r}."
            )
        validate.choice("gradient", gradient, GRADIENTS)
        plan = replace(plan, auxiliary={**plan.auxiliary, "gradient": gradient})
    try:
        model = recipes.build(plan)
    except InputError as error:
        raise FileError(f"{path}: the recipe inside does not build ({error}).") from error
    wanted = model.state_dict()
    for key in sorted({*wanted, *tensors}):
        got, want = (list(part[key].shape) if key in part else "nothing" for part in (tensors, wanted))
        if got != want:
            raise FileError(f"{path}: tensor {key!r} is {got}, want {want}: weights and recipe do not belong together.")
    model.load_state_dict(tensors)
    schedule = plan.training
    precision = metadata.get("precision", "fp32")
    model.training_note = f"{schedule.epochs} epochs, seed {schedule.seed}, {precision}"
    return model.to(engine.pick_device(str(device))).eval()


def _recipe(path: Path, metadata: dict[str, str]) -> Recipe:
    if "recipe" not in metadata:
        raise FileError(f"{path}: holds no recipe; want weights written by `soap train`.")
    try:
        return recipes.parse(metadata["recipe"], str(path))
    except InputError as error:
        raise FileError(f"{path}: the recipe inside does not build ({error}).") from error
