"""Save a wrapped model as weights and settings, and restore it with the same module; files contain no code."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from operator import index
from pathlib import Path
from typing import Any

from torch import nn

from soap._files import tensor_files
from soap.auxiliary.consistency import Consistency
from soap.auxiliary.joint import AuxiliaryTask, JointModel, Purification
from soap.auxiliary.wrapping import TASKS, wrap
from soap.errors import FileError, InputError

METADATA_KEY = "adopted"
"""Key of the settings in the file; older versions wrote the same key."""

MAX_INPUT_VALUES = 3 * 1024 * 1024
"""Limit on the input shape of an untrusted file: `wrap` allocates two inputs of that shape."""


def save(path: str | Path, model: JointModel) -> None:
    """Write the weights and settings of a model as one safetensors file."""
    tensor_files.check_storable(model.state_dict())
    tensor_files.save_tensors(Path(path), model.state_dict(), metadata(model))


def metadata(model: JointModel) -> dict[str, str]:
    """Return the file's metadata: task, input shape, purifier settings and name."""
    task, settings = model.auxiliary, model.purification
    about: dict[str, Any] = {
        "name": model.name,
        "shape": list(model.input_shape),
        "task": task_name(task),
        "options": {key: getattr(task, key) for key in ("alpha", "noise", "gradient") if hasattr(task, key)},
        "purification": None if settings is None else asdict(settings),
        **model.normalisation,
    }
    if model.class_names is not None:
        about["classes"] = model.class_names
    return {METADATA_KEY: json.dumps(about, sort_keys=True)}


def task_name(task: AuxiliaryTask | None) -> str | None:
    """Return the name of a task that `wrap` accepts; None for others."""
    return next((name for name, kind in TASKS.items() if type(task) is kind), None)


def restore(
    path: str | Path,
    classifier: nn.Module,
    task: AuxiliaryTask | None = None,
    *,
    encoder: nn.Module | None = None,
    head: nn.Module | None = None,
) -> JointModel:
    """Load a joint model written by `save` or `soap.fit`, in evaluation mode.

    classifier, encoder, head: the same modules as passed to `wrap`; the file's weights are loaded into them. A
    `JointModel` as classifier is used as it is, with the file's purifier settings, name and classes.
    task: required if the model was wrapped with your own `AuxiliaryTask`.
    """
    path = Path(path)
    tensors, facts = tensor_files.load_tensors(path)
    try:
        about = json.loads(facts[METADATA_KEY])
        shape, name, known = tuple(map(index, about["shape"])), str(about["name"]), about["task"]
        given: dict[str, Any] = about["options"]
        gradient = given.pop("gradient", None)
        options: dict[str, Any] = {key: _finite(given[key]) for key in ("alpha", "noise") if key in given}
        purification = _purification(about["purification"])
        normalisation: dict[str, Any] = {key: _numbers(about[key]) for key in ("mean", "std") if key in about}
        classes = class_list(about["classes"]) if "classes" in about else None
        if {*given} != {*options}:
            raise ValueError(f"options {', '.join(given)}")
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        expected = "expected a file of soap.auxiliary.save or soap.fit"
        raise FileError(f"{path}: not a wrapped model; {expected}.") from error
    if math.prod(shape) > MAX_INPUT_VALUES:
        raise FileError(
            f"{path}: the input shape {list(shape)!r:.80} has more than {MAX_INPUT_VALUES:,} values; if you trust the "
            "file, call soap.wrap with your shape and load the file's tensors into it."
        )
    if isinstance(classifier, JointModel):
        model = classifier
        model.purification, model.name = purification, name
    else:
        if task is not None:
            options = {}
        elif known is None:
            raise InputError(
                f"{path}: {name} was wrapped with its own task, which is code and not in the file; pass it as "
                "task=..., or pass the joint model as classifier."
            )
        elif gradient is not None:
            task, options = Consistency(**options, gradient=gradient), {}
        model = wrap(
            classifier,
            known if task is None else task,
            shape=shape,
            encoder=encoder,
            head=head,
            purification=purification,
            name=name,
            **normalisation,
            **options,
        )
    if classes is not None and len(classes) != model.classes:
        raise FileError(f"{path}: it names {len(classes)} classes, but the module has {model.classes}.")
    model.class_names = classes
    advice = "the file belongs to another module. Pass the same classifier, encoder and head as to soap.wrap"
    tensor_files.check_shapes(path, tensors, model.state_dict(), advice)
    model.load_state_dict(tensors)
    return model.eval()


def _purification(settings: Mapping[str, Any] | None) -> Purification | None:
    if settings is None:
        return None
    grid = tuple(map(_finite, settings["grid"]))
    return Purification(step_size=_finite(settings["step_size"]), steps=index(settings["steps"]), grid=grid)


def class_list(value: Any) -> tuple[str, ...]:
    """Return the class names of an untrusted file; they are printed, so they must not control a terminal."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name.isprintable() for name in value):
        raise ValueError("the class names are not a list of printable texts")
    return tuple(value)


def _numbers(value: Any) -> float | list[float]:
    """Return a number or a list of numbers."""
    return list(map(_finite, value)) if isinstance(value, list) else _finite(value)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number
