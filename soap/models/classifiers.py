"""The classifiers of the paper's Table 7: FCN and CNN for MNIST with their decoders, two residual networks for CIFAR.

The residual networks are a small ResNet-18 (He et al. 2016) and Wide-ResNet-28-10 (Zagoruyko & Komodakis 2016).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from soap.models.batch_norm import Norm, RectifiedNorm
from soap.models.grey_convolution import GreyConv2d
from soap.shapes import Float, Tensor

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Encoder z = f(x) and classifier g(z), without an auxiliary task.

    `inputs` is the shape of one input x, `features` the shape of its z.
    """

    encoder: nn.Module
    classifier: nn.Module
    inputs: tuple[int, ...]
    features: tuple[int, ...]
    classes: int


class Normalise(nn.Module):
    """(x - mean) / std for each channel; the first layer of a network, so that callers pass images in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        """Return normalised images in channels-last layout, in which the convolutions are faster."""
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def fcn(*, inputs: tuple[int, ...] = (1, 28, 28), classes: int = 10, dropout: float = 0.5) -> Network:
    """Fully connected network: FC(256), FC(128), FC(classes), with ReLU and dropout after each hidden layer.

    z has 128 features. The paper prints dropout 0.5. The authors' SOAP-DR network has none, which doubles the accuracy
    after purification.
    """
    encoder = nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(inputs), 256),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
    )
    return Network(encoder=encoder, classifier=nn.Linear(128, classes), inputs=inputs, features=(128,), classes=classes)


def cnn(*, inputs: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Network:
    """Convolutional network: Conv(32) and Conv(64), both 3x3 at stride 2, BN; then g: FC(128), BN, FC(classes).

    z is the normalised 64-channel map at a quarter of the input's side (64 x 7 x 7 for MNIST).
    """
    channels, height, width = inputs
    encoder = nn.Sequential(
        (GreyConv2d if channels == 1 else nn.Conv2d)(channels, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        Norm(64),
    )
    # Two convolutions at stride 2 and padding 1 halve a side twice, rounding up.
    features = (64, -(-height // 4), -(-width // 4))
    classifier = nn.Sequential(
        nn.Flatten(),
        nn.Linear(features[0] * features[1] * features[2], 128),
        nn.ReLU(),
        nn.BatchNorm1d(128),
        nn.Linear(128, classes),
    )
    return Network(encoder=encoder, classifier=classifier, inputs=inputs, features=features, classes=classes)


def dense_decoder(features: tuple[int, ...], outputs: tuple[int, ...]) -> nn.Module:
    """Decoder FC(256), FC(outputs), sigmoid: the mirror image of the FCN's encoder."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(features), 256),
        nn.ReLU(),
        nn.Linear(256, math.prod(outputs)),
        nn.Sigmoid(),
        nn.Unflatten(1, outputs),
    )


def conv_decoder(features: tuple[int, ...], outputs: tuple[int, ...]) -> nn.Module:
    """Decoder of two transposed convolutions that double the side twice: the mirror image of the CNN's encoder."""
    width = features[0]
    return nn.Sequential(
        nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, outputs[0], 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


DECODERS = {"dense": dense_decoder, "conv": conv_decoder}


class Block(nn.Module):
    """Block(m, 3x3, s) of Table 7: two convolutions with batch norm, plus a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            RectifiedNorm(after),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), Norm(after))
        self.join = RectifiedNorm(after)

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c2 h2 w2"]:
        """Return relu(norm(residual) + shortcut)."""
        out: Tensor = self.join(self.residual(x), self.shortcut(x))
        return out


def resnet18(
    *,
    inputs: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    mean: Sequence[float] = CIFAR_MEAN,
    std: Sequence[float] = CIFAR_STD,
    mirrored: bool = False,
) -> Network:
    """ResNet with widths 16-32-64, two blocks each, global average pooling: 0.18 M parameters, 64 features.

    mirrored: the logits are the mean over the image and its mirror image; the weights have the same names and shapes.
    """
    layers = BothViews if mirrored else nn.Sequential
    encoder = layers(
        Normalise(mean, std),
        nn.Conv2d(inputs[0], 16, 3, padding=1, bias=False),
        RectifiedNorm(16),
        Block(16, 16, 1),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 32, 1),
        Block(32, 64, 2),
        Block(64, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    last = (MeanOfViews if mirrored else nn.Linear)(64, classes)
    return Network(encoder=encoder, classifier=last, inputs=inputs, features=(64,), classes=classes)


class BothViews(nn.Sequential):
    """Layers that process every image and its mirror image; the result has twice the batch."""

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "views features"]:
        """Return the features of the images, then those of their mirror images."""
        out = torch.cat([x, x.flip(-1)])
        for layer in self:
            out = layer(out)
        return out


class MeanOfViews(nn.Linear):
    """A linear layer whose outputs are averaged over the two views of `BothViews`."""

    def forward(self, z: Float[Tensor, "views features"]) -> Float[Tensor, "batch classes"]:
        """Return the mean logits of every image and its mirror image."""
        image, mirror = super().forward(z).chunk(2)
        return (image + mirror) / 2


class WideBlock(nn.Module):
    """Wide-Block(m, 3x3, s, p): pre-activation, dropout between the convolutions, stride on the second."""

    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            RectifiedNorm(before),
            nn.Conv2d(before, after, 3, padding=1),
            nn.Dropout(dropout),
            RectifiedNorm(after),
            nn.Conv2d(after, after, 3, stride=stride, padding=1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c2 h2 w2"]:
        """Return residual + shortcut."""
        out: Tensor = self.residual(x) + self.shortcut(x)
        return out


def wide_resnet28(
    *,
    inputs: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    widen: int = 10,
    dropout: float = 0.3,
    mean: Sequence[float] = CIFAR_MEAN,
    std: Sequence[float] = CIFAR_STD,
) -> Network:
    """Wide-ResNet of 28 layers: three groups of four blocks, `widen` times the width; 36.5 M parameters at 10."""
    layers: list[nn.Module] = [Normalise(mean, std), nn.Conv2d(inputs[0], 16, 3, padding=1)]
    before = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(4):
            layers.append(WideBlock(before, width * widen, stride if block == 0 else 1, dropout))
            before = width * widen
    encoder = nn.Sequential(*layers, RectifiedNorm(before), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(
        encoder=encoder, classifier=nn.Linear(before, classes), inputs=inputs, features=(before,), classes=classes
    )
