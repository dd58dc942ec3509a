"""What every architecture hands over: an encoder f, a classifier g, and their shapes."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Network:
    """The paper's z = f(x) and g(z), not yet joined with an auxiliary task.

    `features` is the shape of z for one example; `inputs` that of x.
    """

    encoder: nn.Module
    classifier: nn.Module
    inputs: tuple[int, ...]
    features: tuple[int, ...]
    classes: int
