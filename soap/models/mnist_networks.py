"""The fully connected network of the paper's Table 7."""

import math

from torch import nn

from soap.models.network import Network


def fcn(*, inputs: tuple[int, ...] = (1, 28, 28), classes: int = 10, dropout: float = 0.5) -> Network:
    """FC(256), FC(128), FC(classes), each hidden layer with ReLU and dropout; z has 128 numbers.

    The paper prints dropout 0.5; its SOAP-DR network has none, and purifies twice as well for it.
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
