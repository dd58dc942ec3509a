"""Find the features z of any classifier: the input of its last linear layer."""

import threading
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated
from soap.errors import InputError
from soap.shapes import Float, Tensor

SPLIT_HINT = "pass the split yourself: encoder=f up to the features, and as classifier g, with logits g(f(x))"


class LayerInput(nn.Module):
    """Encoder z = f(x): runs `network` and returns the input of its submodule `layer`."""

    def __init__(self, network: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._layer = (layer,)  # in a tuple, so that the weights are registered and saved only with the network

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *features"]:
        """Return the layer's input; the hook exists only during the call and only sees this thread."""
        seen: list[Tensor] = []
        here = threading.get_ident()

        def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if threading.get_ident() == here:
                seen.append(arguments[0])

        hook = self._layer[0].register_forward_pre_hook(record)
        try:
            self.network(x)
        finally:
            hook.remove()
        if len(seen) != 1:
            mode = "training" if self.training else "evaluation"
            raise InputError(
                f"the last linear layer was called {len(seen)} times in {mode} mode, expected once; {SPLIT_HINT}."
            )
        return seen[0]


class SharedLayer(nn.Module):
    """Classifier g(z): a layer whose weights are registered with another module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = (layer,)

    def forward(self, z: Float[Tensor, "batch *features"]) -> Float[Tensor, "batch classes"]:
        """Return the layer's output, the logits."""
        logits: Tensor = self._layer[0](z)
        return logits


def last_linear(network: nn.Module, x: Float[Tensor, "batch *shape"]) -> nn.Linear:
    """Return the linear layer whose output is the network's logits; raise `InputError` if there is none.

    The network is run on `x` in evaluation mode: the order of calls decides, not the order of definition.
    """
    calls: list[tuple[str, nn.Linear, Tensor]] = []  # name, layer, output of each call
    linear = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)]

    def recorder(name: str, layer: nn.Linear) -> Any:
        return lambda module, arguments, output: calls.append((name, layer, output.detach()))

    hooks = [layer.register_forward_hook(recorder(name, layer)) for name, layer in linear]
    try:
        with isolated(network), torch.no_grad():
            try:
                logits = network(x)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise InputError(f"the classifier fails on a {validate.describe(x)}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    validate.logits(logits, len(x))
    kind = type(network).__name__
    if not calls:
        raise InputError(f"{kind} calls no linear layer (nn.Linear) to compute its logits; {SPLIT_HINT}.")
    name, layer, alone = calls[-1]
    times = sum(one is layer for _, one, _ in calls)
    if times > 1:
        raise InputError(
            f"{kind} calls its last linear layer {name!r} {times} times in one pass, expected once; {SPLIT_HINT}."
        )
    # Equal values do not suffice: a later operation may be an identity for now, e.g. a temperature of 1.
    if alone.shape != logits.shape or alone.data_ptr() != logits.data_ptr():
        raise InputError(f"the logits of {kind} are not the output of its last linear layer {name!r}; {SPLIT_HINT}.")
    return layer
