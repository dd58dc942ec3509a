"""Networks by name: the paper's encoders f and classifiers g, decoders h, a WGAN, an autoencoder and a DDPM."""

from collections.abc import Callable
from typing import Any

from soap.errors import call_with, unknown
from soap.models.classifiers import (
    DECODERS,
    Network,
    Normalise,
    cnn,
    conv_decoder,
    dense_decoder,
    fcn,
    resnet18,
    wide_resnet28,
)
from soap.models.ddpm import DDPM
from soap.models.image_networks import Autoencoder, Critic, Generator
from soap.models.logits_adapter import LogitsAdapter

ARCHITECTURES: dict[str, Callable[..., Network]] = {
    "fcn": fcn,
    "cnn": cnn,
    "resnet18": resnet18,
    "wide-resnet28": wide_resnet28,
}


def build(name: str, **options: Any) -> Network:
    """Build the architecture called `name` with freshly initialised weights."""
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    network: Network = call_with(ARCHITECTURES[name], options, f"option of the {name} architecture")
    return network


__all__ = [
    "ARCHITECTURES",
    "DDPM",
    "DECODERS",
    "Autoencoder",
    "Critic",
    "Generator",
    "LogitsAdapter",
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
