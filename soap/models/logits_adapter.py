"""`LogitsAdapter`: a classifier from inputs in [0, 1] to logits, around a network with another input or output."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from soap import validate
from soap.errors import InputError
from soap.shapes import Float, Tensor


class LogitsAdapter(nn.Module):
    """Normalises inputs in [0, 1], runs `network` and returns its logits.

    The network may return a tensor, an object with `.logits` (as of Hugging Face), a dict with "logits", or a tuple
    whose first element is the logits. mean, std: of the network's inputs, one number, or one for each channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, *, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0):
        super().__init__()
        self.network = network
        like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
        for name, value in (("mean", mean), ("std", std)):
            numbers = torch.tensor(value, dtype=like.dtype, device=like.device).reshape(-1)
            if not torch.isfinite(numbers).all() or (name == "std" and (numbers <= 0).any()):
                wanted = "positive numbers" if name == "std" else "finite numbers"
                raise InputError(f"{name} is {value!r}, expected {wanted}: one, or one for each channel.")
            self.register_buffer(name, numbers, persistent=False)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits."""
        mean, std = (self._per_channel(name, x) for name in ("mean", "std"))
        logits: Tensor = logits_of(self.network((x - mean) / std))
        return logits

    def _per_channel(self, name: str, x: Tensor) -> Tensor:
        values: Tensor = getattr(self, name)
        if len(values) not in (1, x.shape[1]):
            raise InputError(
                f"{name} has {len(values)} numbers, but the input is a {validate.describe(x)}; expected 1 or "
                f"{x.shape[1]}, one for each channel."
            )
        return values.reshape(-1, *[1] * (x.ndim - 2))


def logits_of(output: Any) -> Any:
    """Return the logits in the output of a network, or the output itself if none are found."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    return output[0] if isinstance(output, tuple | list) and output else output
