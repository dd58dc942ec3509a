"""Trained models by name: weights, with the recipe that made them inside and their measured rows beside them."""

from importlib import resources
from pathlib import Path

import torch

from soap import engine, recipes
from soap.auxiliary import JointModel
from soap.errors import FileError, InputError, unknown


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
        raise unknown("model", str(name), names())
    return folder() / f"{name}.safetensors"


def load(name: str | Path, *, device: str | torch.device = "cpu") -> JointModel:
    """A trained model in evaluation mode: a bundled one by name, or any by the path of its .safetensors file.

    The file is data alone; nothing in it is executed.
    """
    path = weights_path(name)
    tensors, metadata = engine.load_tensors(path)
    if "recipe" not in metadata:
        raise FileError(f"{path}: holds no recipe; want weights written by `soap train`.")
    try:
        model = recipes.build(recipes.parse(metadata["recipe"], str(path)))
    except InputError as error:
        raise FileError(f"{path}: the recipe inside does not build ({error}).") from error
    wanted = model.state_dict()
    for key in sorted({*wanted, *tensors}):
        got, want = (list(part[key].shape) if key in part else "nothing" for part in (tensors, wanted))
        if got != want:
            raise FileError(f"{path}: tensor {key!r} is {got}, want {want}: weights and recipe do not belong together.")
    model.load_state_dict(tensors)
    return model.to(engine.pick_device(str(device))).eval()
