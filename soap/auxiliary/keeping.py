"""An adopted model on disk: weights and settings, never code. To read it back, bring the same module again."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from operator import index
from pathlib import Path
from typing import Any

from torch import nn

from soap._files import tensor_files
from soap.auxiliary.adopting import TASKS, wrap
from soap.auxiliary.consistency import Consistency
from soap.auxiliary.joint import JointModel, Purification
from soap.auxiliary.task import AuxiliaryTask
from soap.errors import FileError, InputError

KEY = "adopted"

MOST = 3 * 1024 * 1024
"""Numbers of one input at most: the shape is tried out on two of them and a copy, however short the file."""


def save(path: str | Path, model: JointModel) -> None:
    """Write the weights and settings of a model as one safetensors file."""
    tensor_files.check_storable(model.state_dict())
    tensor_files.save_tensors(Path(path), model.state_dict(), metadata(model))


def metadata(model: JointModel) -> dict[str, str]:
    """What the file tells beside the weights: task, input shape, purifier settings and name."""
    task, settings = model.auxiliary, model.purification
    about: dict[str, Any] = {
        "name": model.name,
        "shape": list(model.input_shape),
        "task": next((name for name, kind in TASKS.items() if type(task) is kind), None),
        "options": {key: getattr(task, key) for key in ("alpha", "noise", "gradient") if hasattr(task, key)},
        "purification": None if settings is None else asdict(settings),
    }
    return {KEY: json.dumps(about, sort_keys=True)}


def restore(
    path: str | Path,
    classifier: nn.Module,
    task: AuxiliaryTask | None = None,
    *,
    encoder: nn.Module | None = None,
    head: nn.Module | None = None,
) -> JointModel:
    """The joint model kept in `path`, by `save` or by `soap.training.fit`, in evaluation mode.

    classifier, encoder, head: the modules that were given to `wrap`, with any weights; they get those of the file.
    task: wanted where it was one of your own.
    """
    path = Path(path)
    tensors, facts = tensor_files.load_tensors(path)
    try:
        about = json.loads(facts[KEY])
        shape, name, known = tuple(map(index, about["shape"])), str(about["name"]), about["task"]
        given: dict[str, Any] = about["options"]
        gradient = given.pop("gradient", None)
        options: dict[str, Any] = {key: _finite(given[key]) for key in ("alpha", "noise") if key in given}
        purification = _purification(about["purification"])
        if {*given} != {*options}:
            raise ValueError(f"options {', '.join(given)}")
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        wanted = "want a file of soap.auxiliary.save or soap.training.fit"
        raise FileError(f"{path}: not an adopted model; {wanted}.") from error
    if math.prod(shape) > MOST:
        raise FileError(
            f"{path}: its inputs are said to have more than {MOST:,} numbers (three channels of 1024 x 1024); "
            "if you trust the file, call soap.auxiliary.wrap with your shape and load its tensors into that."
        )
    if task is None and known is None:
        raise InputError(f"{path}: {name} has a task of its own, which is code; give it as task=...")
    if task is None and gradient is not None:
        task, options = Consistency(**options, gradient=gradient), {}
    model = wrap(
        classifier,
        known if task is None else task,
        shape=shape,
        encoder=encoder,
        head=head,
        purification=purification,
        name=name,
        **({} if task is not None else options),
    )
    fresh = model.state_dict()
    for key in sorted({*fresh, *tensors}):
        got, want = (list(part[key].shape) if key in part else "nothing" for part in (tensors, fresh))
        if got != want:
            raise FileError(
                f"{path}: tensor {key!r} is {got}, want {want}: another module was kept here. Give the same "
                "classifier, encoder and head as when it was wrapped."
            )
    model.load_state_dict(tensors)
    return model.eval()


def _purification(settings: Mapping[str, Any] | None) -> Purification | None:
    if settings is None:
        return None
    grid = tuple(map(_finite, settings["grid"]))
    return Purification(step_size=_finite(settings["step_size"]), steps=index(settings["steps"]), grid=grid)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number
