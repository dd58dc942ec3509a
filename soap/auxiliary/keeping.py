"""An adopted model on disk: weights and settings, never code. To read it back, bring the same module again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from soap import engine
from soap.auxiliary.adopting import TASKS, wrap
from soap.auxiliary.consistency import Consistency
from soap.auxiliary.joint import JointModel, Purification
from soap.auxiliary.task import AuxiliaryTask
from soap.errors import FileError, InputError

KEY = "adopted"


def save(path: Path, model: JointModel) -> None:
    """Write the weights and settings of a model as one safetensors file."""
    engine.save_tensors(path, model.state_dict(), metadata(model))


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
    path: Path,
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
    tensors, facts = engine.load_tensors(path)
    try:
        about = json.loads(facts[KEY])
        shape, name, known = tuple(about["shape"]), str(about["name"]), about["task"]
        options, settings = dict(about["options"]), about["purification"]
        purification = None if settings is None else Purification(**{**settings, "grid": tuple(settings["grid"])})
    except (KeyError, TypeError, ValueError) as error:
        wanted = "want a file of soap.auxiliary.save or soap.training.fit"
        raise FileError(f"{path}: not an adopted model; {wanted}.") from error
    if task is None and known is None:
        raise InputError(f"{path}: {name} has a task of its own, which is code; give it as task=...")
    gradient = options.pop("gradient", None)
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
