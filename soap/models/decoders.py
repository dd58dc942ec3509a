"""Decoders h for data reconstruction: from z back to an input squashed into [0, 1]."""

import math

from torch import nn


def dense_decoder(features: tuple[int, ...], outputs: tuple[int, ...]) -> nn.Module:
    """FC(256), FC(outputs): the mirror image of the FCN's encoder."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(features), 256),
        nn.ReLU(),
        nn.Linear(256, math.prod(outputs)),
        nn.Sigmoid(),
        nn.Unflatten(1, outputs),
    )


def conv_decoder(features: tuple[int, ...], outputs: tuple[int, ...]) -> nn.Module:
    """Two transposed convolutions that double the side twice: the mirror image of the CNN's encoder."""
    width = features[0]
    return nn.Sequential(
        nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, outputs[0], 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


DECODERS = {"dense": dense_decoder, "conv": conv_decoder}
