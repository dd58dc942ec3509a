"""Checkpoints of a training run: a resumed run ends with the same weights as an uninterrupted one."""

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from soap import __version__
from soap._files import atomic, tensor_files
from soap._runtime import distributed
from soap.errors import FileError, InputError, unknown
from soap.shapes import Tensor

NAME, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
"""The last checkpoint, and the previous one in case the last is damaged."""

LOG = logging.getLogger("soap")

MAX_RECIPE_CHARS = 2**14
"""Limit on an untrusted recipe, ten times the bundled ones: tomllib takes very long for many nested brackets."""

MOMENTUM = "momentum"
"""Name of SGD's momentum_buffer in the file; other optimiser state keeps its own name."""


def check_folder(folder: Path, *, resume: bool) -> None:
    """Raise unless `folder` contains a checkpoint exactly if a run is to be resumed."""
    exists = (folder / NAME).exists()
    if exists and not resume:
        raise InputError(
            f"{folder} contains an earlier run; continue it with resume=True (--resume), or choose another folder."
        )
    if resume and not exists:
        raise InputError(f"{folder} contains no checkpoint to resume; omit resume, or name the folder of the run.")


def save(
    folder: Path,
    model: nn.Module,
    *optimisers: torch.optim.Optimizer,
    extra: Mapping[str, Tensor],
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> None:
    """Write weights, optimiser state, `extra` tensors and `state`; `identity` holds the settings of the run."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter, optimiser in _owned(model, optimisers):
        for slot, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{MOMENTUM if slot == 'momentum_buffer' else slot}.{name}"] = value
    tensors |= {f"extra.{name}": value for name, value in extra.items()}
    content = json.dumps({**state, "identity": {**identity, **_environment(model)}})
    tensor_files.save_tensors(folder / NAME, tensors, {"state": content}, folder / PREVIOUS)


def restore(
    folder: Path, model: nn.Module, *optimisers: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load model and optimisers; return the extra tensors and the state. Raise if the settings of the runs differ.

    If the last checkpoint is damaged, the previous one is used and a warning is logged.
    """
    path, (tensors, metadata), damage = _last_good(folder)
    try:
        state = json.loads(metadata["state"])
        theirs = dict(state.pop("identity"))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FileError(f"{path}: not a training checkpoint; expected the folder of an earlier run.") from error
    _check_same_run(path, theirs, json.loads(json.dumps({**identity, **_environment(model)})))
    if damage is not None:
        atomic.copy(path, folder / NAME)  # otherwise the next save keeps the damaged one as the previous
        LOG.warning("%s Resuming from the previous checkpoint, of step %s.", damage, state.get("step"))
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "extra": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = value
    extra = parts.pop("extra")
    try:
        model.load_state_dict(parts.pop("model"))
        for name, parameter, optimiser in _owned(model, optimisers):
            for kind, kept in parts.items():
                if name in kept:
                    slot = "momentum_buffer" if kind == MOMENTUM else kind
                    optimiser.state[parameter][slot] = _placed(slot, kept[name], parameter, optimiser)
    except RuntimeError as error:
        raise FileError(f"{path}: its tensors do not fit this model ({str(error)[:200]}); train again.") from error
    return extra, state


def _last_good(folder: Path) -> tuple[Path, tuple[dict[str, Tensor], dict[str, str]], FileError | None]:
    """Return the last readable checkpoint, its content, and the error of a damaged last one."""
    try:
        return folder / NAME, tensor_files.load_tensors(folder / NAME), None
    except FileError as problem:
        if not (folder / NAME).exists() or not (folder / PREVIOUS).exists():
            raise
        try:
            return folder / PREVIOUS, tensor_files.load_tensors(folder / PREVIOUS), problem
        except FileError as further:
            raise FileError(f"{problem} The previous checkpoint is damaged, too: {further}") from further


def _environment(model: nn.Module) -> dict[str, str | int]:
    """Return what else must be equal to resume: version, architecture and number of processes."""
    shapes = sorted(f"{name} {list(value.shape)}" for name, value in model.state_dict().items())
    architecture = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
    return {"version": __version__, "architecture": architecture, "processes": distributed.processes().world_size}


def _check_same_run(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise `InputError` if the settings differ; older checkpoints have no version, architecture and processes."""
    theirs = {"processes": 1, **theirs, "schedule": _with_batch_size(theirs.get("schedule"))}
    theirs, ours = ({**one, "recipe": _recipe_content(one)} for one in (theirs, ours))
    unknown = {"version", "architecture"} - {*theirs}
    changed = sorted(key for key in {*theirs, *ours} - unknown if theirs.get(key) != ours.get(key))
    if changed:
        raise InputError(
            f"{path} belongs to another run: {', '.join(changed)} differ. Resume with the same recipe, data and "
            "options, or train into another folder (--out)."
        )


CHANGEABLE = {
    "data": None, "epochs": "training", "seed": "training", "decay": "training", "dropout": "model", "classes": "model"
}  # fmt: skip
"""Values that a recipe's table [changed] may replace, and the table that each is in."""


def recipe_values(text: str) -> dict[str, Any]:
    """Return the values of a recipe's TOML, with those of its table [changed] in their places.

    Recipes of older versions, e.g. inside weights, call `batch_size` batch.
    """
    content = tomllib.loads(text)
    if "training" in content:
        content["training"] = _with_batch_size(content["training"])
    changed = content.pop("changed", {})
    for key, value in changed.items() if isinstance(changed, dict) else ():
        section = CHANGEABLE.get(key)
        table = content if section is None else content.get(section)
        if key not in CHANGEABLE or not isinstance(table, dict):
            raise unknown("key in [changed]", key, CHANGEABLE)
        table[key] = value
    return content


def _with_batch_size(settings: Any) -> Any:
    """Return settings of a training with the present name of `batch_size`."""
    if not isinstance(settings, dict) or "batch_size" in settings:
        return settings
    return {"batch_size" if key == "batch" else key: value for key, value in settings.items()}


def _recipe_content(identity: Mapping[str, Any]) -> Any:
    """Return the recipe's values without its comments and formatting."""
    text = identity.get("recipe")
    if not isinstance(text, str) or len(text) > MAX_RECIPE_CHARS:
        return text
    try:
        return recipe_values(text)
    except (ValueError, RecursionError):
        return text


def _owned(
    model: nn.Module, optimisers: tuple[torch.optim.Optimizer, ...]
) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
    """Yield every trained parameter: its name in the model, the parameter, and its optimiser."""
    owners = {id(p): optimiser for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in owners:
            yield name, parameter, owners[id(parameter)]


def _placed(slot: str, value: Tensor, parameter: nn.Parameter, optimiser: torch.optim.Optimizer) -> Tensor:
    """Return an optimiser's state tensor on the device and in the layout that the optimiser uses."""
    if slot != "step":
        # The fused optimiser needs the layout of the parameter.
        return torch.empty_like(parameter, requires_grad=False).copy_(value)
    on_device = optimiser.defaults.get("fused") or optimiser.defaults.get("capturable")
    return value.to(parameter.device) if on_device else value  # Adam counts steps on the host by default
