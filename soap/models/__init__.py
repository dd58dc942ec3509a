"""The networks of the paper, by name: encoder f, classifier g, decoders h, and a generator with its critic."""

from collections.abc import Callable
from typing import Any

from soap.errors import call_with, unknown
from soap.models.cnn import cnn
from soap.models.decoders import DECODERS, conv_decoder, dense_decoder
from soap.models.fcn import fcn
from soap.models.network import Network
from soap.models.normalisation import Normalise
from soap.models.resnet import resnet18
from soap.models.wgan import Critic, Generator
from soap.models.wide_resnet import wide_resnet28

ARCHITECTURES: dict[str, Callable[..., Network]] = {
    "fcn": fcn,
    "cnn": cnn,
    "resnet18": resnet18,
    "wide-resnet28": wide_resnet28,
}


def build(name: str, **options: Any) -> Network:
    """The architecture called `name` with freshly drawn weights."""
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    network: Network = call_with(ARCHITECTURES[name], options, f"option of the {name} architecture")
    return network


__all__ = [
    "ARCHITECTURES",
    "DECODERS",
    "Critic",
    "Generator",
    "Network",
    "Normalise",
    "build",
    "cnn",
    "conv_decoder",
    "dense_decoder",
    "fcn",
    "resnet18",
    "wide_resnet28",
]
