"""A training run on disk: everything it needs to go on as if it had never stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from soap import engine
from soap.errors import FileError, InputError
from soap.shapes import Tensor

NAME = "checkpoint.safetensors"


def save(
    folder: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    extra: Mapping[str, Tensor],
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> None:
    """Write weights, momentum, `extra` tensors and `state`; `identity` says which run this is."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        momentum = optimiser.state[parameter].get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{name}"] = momentum
    tensors |= {f"extra.{name}": value for name, value in extra.items()}
    content = json.dumps({**state, "identity": identity})
    engine.save_tensors(folder / NAME, tensors, {"state": content})


def restore(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, *, identity: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load model and optimiser; the extra tensors and the state come back. Another run's checkpoint is refused."""
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
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "momentum": {}, "extra": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = value
    model.load_state_dict(parts["model"])
    for name, parameter in model.named_parameters():
        if name in parts["momentum"]:
            # In the parameter's own layout: the fused update takes no other.
            momentum = torch.empty_like(parameter, requires_grad=False).copy_(parts["momentum"][name])
            optimiser.state[parameter]["momentum_buffer"] = momentum
    return parts["extra"], state
