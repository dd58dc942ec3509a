"""The small convolutional network of the paper's Table 7."""

from torch import nn

from soap.models.network import Network
from soap.models.norm import Norm


def cnn(*, inputs: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Network:
    """Conv(32), Conv(64), both 3x3 at stride 2, BN; then FC(128), BN, FC(classes) as classifier g.

    z is the normalised 64-channel map at a quarter of the input's side (64 x 7 x 7 for digits).
    """
    channels, height, width = inputs
    encoder = nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
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
