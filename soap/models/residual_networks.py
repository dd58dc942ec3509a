"""The paper's CIFAR networks: a small ResNet-18 (He et al. 2016) and Wide-ResNet-28-10 (Zagoruyko & Komodakis 2016)."""

from collections.abc import Sequence

from torch import nn

from soap.models.architecture import Network, Normalise
from soap.models.batch_norm import Norm, RectifiedNorm
from soap.shapes import Float, Tensor

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


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
) -> Network:
    """ResNet with widths 16-32-64, two blocks each, global average pooling: 0.18 M parameters, 64 features."""
    encoder = nn.Sequential(
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
    return Network(encoder=encoder, classifier=nn.Linear(64, classes), inputs=inputs, features=(64,), classes=classes)


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
