"""A training run on disk: everything it needs to go on as if it had never stopped."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from soap import engine
from soap.errors import FileError, InputError
from soap.shapes import Tensor

NAME = "checkpoint.safetensors"

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
    content = json.dumps({**state, "identity": identity})
    engine.save_tensors(folder / NAME, tensors, {"state": content})


def restore(
    folder: Path, model: nn.Module, *optimisers: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load model and optimisers; the extra tensors and the state come back. Another run's checkpoint is refused."""
    path = folder / NAME
    tensors, metadata = engine.load_tensors(path)
    try:
        state = json.loads(metadata["state"])
        theirs, ours = state.pop("identity"), json.loads(json.dumps(identity))
    except (KeyError, ValueError) as error:
        raise FileError(f"{path}: not a training checkpoint; want the folder of an earlier run.") from error
    changed = sorted(key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key))
    if changed:
        raise InputError(
            f"{path} belongs to another run: {', '.join(changed)} differ. Resume with the same recipe, data and "
            "options, or train into another --out."
        )
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "extra": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = value
    model.load_state_dict(parts.pop("model"))
    extra = parts.pop("extra")
    for name, parameter, optimiser in _owned(model, optimisers):
        for kind, kept in parts.items():
            if name in kept:
                slot = "momentum_buffer" if kind == MOMENTUM else kind
                optimiser.state[parameter][slot] = _placed(slot, kept[name], parameter, optimiser)
    return extra, state


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
