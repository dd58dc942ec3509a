"""The features of a network that was not made for it: what reaches its last linear layer."""

import threading
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated
from soap.errors import InputError
from soap.shapes import Float, Tensor

SPLIT = "give the split yourself: the part up to the features as encoder=f, the rest as classifier g, logits g(f(x))"


class FeaturesOf(nn.Module):
    """z = f(x): `network` is run as it is, and what reaches its submodule `layer` is kept."""

    def __init__(self, network: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._layer = (layer,)  # a tuple: the layer's weights belong to the network, and are saved once

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *features"]:
        """Listens for the time of the call alone, and in this thread alone."""
        seen: list[Tensor] = []
        here = threading.get_ident()

        def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if threading.get_ident() == here:
                seen.append(arguments[0])

        listening = self._layer[0].register_forward_pre_hook(note)
        try:
            self.network(x)
        finally:
            listening.remove()
        if len(seen) != 1:
            mode = "training" if self.training else "evaluation"
            raise InputError(f"the last linear layer was called {len(seen)} times in {mode} mode, want once; {SPLIT}.")
        return seen[0]


class Layer(nn.Module):
    """g(z): a layer whose weights belong to another module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = (layer,)

    def forward(self, z: Float[Tensor, "batch *features"]) -> Float[Tensor, "batch classes"]:
        """What the layer makes of z."""
        logits: Tensor = self._layer[0](z)
        return logits


def last_linear(network: nn.Module, x: Float[Tensor, "batch *shape"]) -> nn.Linear:
    """The linear layer whose output are the network's logits, or an error where there is no such layer.

    Found by running the network in evaluation mode on `x`: the order of calls counts, not that of the definition.
    """
    calls: list[tuple[str, nn.Linear, Tensor]] = []  # with what each returned
    linear = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)]

    def noting(name: str, layer: nn.Linear) -> Any:
        return lambda module, arguments, output: calls.append((name, layer, output.detach()))

    listening = [layer.register_forward_hook(noting(name, layer)) for name, layer in linear]
    try:
        with isolated(network), torch.no_grad():
            try:
                logits = network(x)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise InputError(f"the classifier does not take a {validate.describe(x)}: {error}") from error
    finally:
        for hook in listening:
            hook.remove()
    validate.logits(logits, len(x))
    kind = type(network).__name__
    if not calls:
        raise InputError(f"{kind} calls no linear layer (nn.Linear) on the way to its logits; {SPLIT}.")
    name, layer, alone = calls[-1]
    times = sum(one is layer for _, one, _ in calls)
    if times > 1:
        raise InputError(f"{kind} calls its last linear layer {name!r} {times} times for one batch; {SPLIT}.")
    # Equal values would not do: what comes after the layer may do nothing yet, as a temperature of 1.
    if alone.shape != logits.shape or alone.data_ptr() != logits.data_ptr():
        raise InputError(f"what {kind} returns is not the output of its last linear layer {name!r}; {SPLIT}.")
    return layer
