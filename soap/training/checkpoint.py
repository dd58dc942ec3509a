"""A training run on disk: everything it needs to go on as if it had never stopped."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from soap import __version__
from soap._files import atomic, tensor_files
from soap._runtime import distributed
from soap.errors import FileError, InputError
from soap.shapes import Tensor

NAME, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
"""The last checkpoint, and the one before it for the case that the last is damaged."""

LOG = logging.getLogger("soap")

MOMENTUM = "momentum"
"""What SGD's momentum_buffer is called in the file; whatever else an optimiser keeps is called as it calls it."""


def save(
    folder: Path,
    model: nn.Module,
    *optimisers: torch.optim.Optimizer,
    extra: Mapping[str, Tensor],
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> None:
    """Write weights, the optimisers' averages, `extra` tensors and `state`; `identity` says which run this is."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter, optimiser in _owned(model, optimisers):
        for slot, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{MOMENTUM if slot == 'momentum_buffer' else slot}.{name}"] = value
    tensors |= {f"extra.{name}": value for name, value in extra.items()}
    content = json.dumps({**state, "identity": {**identity, **_circumstances(model)}})
    tensor_files.save_tensors(folder / NAME, tensors, {"state": content}, folder / PREVIOUS)


def restore(
    folder: Path, model: nn.Module, *optimisers: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load model and optimisers; the extra tensors and the state come back. Another run's checkpoint is refused.

    Where the last checkpoint is damaged the one before it is taken, and said so in the log.
    """
    path, (tensors, metadata), damage = _last_good(folder)
    try:
        state = json.loads(metadata["state"])
        theirs = dict(state.pop("identity"))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FileError(f"{path}: not a training checkpoint; want the folder of an earlier run.") from error
    _refuse_another(path, theirs, json.loads(json.dumps({**identity, **_circumstances(model)})))
    if damage is not None:
        atomic.copy(path, folder / NAME)  # else the next save would keep the damaged one as the previous
        LOG.warning("%s The run goes on from the checkpoint before it, of step %s.", damage, state.get("step"))
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
        raise FileError(f"{path}: its tensors are not this model's ({str(error)[:200]}); train again.") from error
    return extra, state


def _last_good(folder: Path) -> tuple[Path, tuple[dict[str, Tensor], dict[str, str]], FileError | None]:
    """The last checkpoint, else the one before it; its content; and what is wrong with the last."""
    try:
        return folder / NAME, tensor_files.load_tensors(folder / NAME), None
    except FileError as problem:
        if not (folder / NAME).exists() or not (folder / PREVIOUS).exists():
            raise
        try:
            return folder / PREVIOUS, tensor_files.load_tensors(folder / PREVIOUS), problem
        except FileError as further:
            raise FileError(f"{problem} Nor is the one before it whole: {further}") from further


def _circumstances(model: nn.Module) -> dict[str, str | int]:
    """What else must be the same for a run to go on as if it had never stopped."""
    shapes = sorted(f"{name} {list(value.shape)}" for name, value in model.state_dict().items())
    architecture = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
    return {"version": __version__, "architecture": architecture, "processes": distributed.here().world}


def _refuse_another(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise unless both runs are the same one; checkpoints of before know of no version and no architecture."""
    theirs = {"processes": 1, **theirs}
    unknown = {"version", "architecture"} - {*theirs}
    changed = sorted(key for key in {*theirs, *ours} - unknown if theirs.get(key) != ours.get(key))
    if changed:
        raise InputError(
            f"{path} belongs to another run: {', '.join(changed)} differ. Resume with the same recipe, data and "
            "options, or train into another --out."
        )


def _owned(
    model: nn.Module, optimisers: tuple[torch.optim.Optimizer, ...]
) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
    """Every parameter that is trained: its name in the model, itself, and its optimiser."""
    owners = {id(p): optimiser for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in owners:
            yield name, parameter, owners[id(parameter)]


def _placed(slot: str, value: Tensor, parameter: nn.Parameter, optimiser: torch.optim.Optimizer) -> Tensor:
    """What an optimiser keeps for a parameter, where and how it keeps it."""
    if slot != "step":
        # In the parameter's own layout: the fused update takes no other.
        return torch.empty_like(parameter, requires_grad=False).copy_(value)
    on_device = optimiser.defaults.get("fused") or optimiser.defaults.get("capturable")
    return value.to(parameter.device) if on_device else value  # Adam counts on the host unless told otherwise
