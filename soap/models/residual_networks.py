"""The small residual network of the paper's Tables 6 and 7 (He et al. 2016, CIFAR variant)."""

from collections.abc import Sequence

from torch import nn

from soap.models.network import Network
from soap.models.norm import Norm, RectifiedNorm
from soap.models.normalisation import Normalise
from soap.shapes import Float, Tensor


class Block(nn.Module):
    """Block(m, 3x3, s): two convolutions with batch norm, bypassed by a shortcut."""

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
        """Residual plus shortcut, rectified."""
        out: Tensor = self.join(self.residual(x), self.shortcut(x))
        return out


def resnet18(
    *,
    inputs: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
) -> Network:
    """Widths 16-32-64, two blocks each, global average pooling: 0.18 M parameters, z has 64 numbers."""
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
