"""The networks of the paper's Table 7 for MNIST: FCN, CNN, and the decoders that mirror their encoders."""

import math

from torch import nn

from soap.models.architecture import Network
from soap.models.batch_norm import Norm


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
