"""Tables 5 to 7, rendered from the code."""

import pytest
import torch
from torch import nn

from soap import models
from soap.paper.architectures import layers, network
from soap.paper.model_names import NETWORK_NAMES
from soap.paper.tables import TABLES

# As printed, but for Pool and Normalise, which the paper leaves out, and the third group of the Wide-ResNet.
PRINTED = {
    "fcn": ["FC(256)", "ReLU", "Dropout(0.5)", "FC(128)", "ReLU", "Dropout(0.5)", "FC(10)"],
    "cnn": ["Conv(32, 3x3, 2)", "ReLU", "Conv(64, 3x3, 2)", "ReLU", "BN", "FC(128)", "ReLU", "BN", "FC(10)"],
    "resnet18": [
        "Conv(16, 3x3, 1)", "BN", "ReLU", "Block(16, 3x3, 1)", "Block(16, 3x3, 1)", "Block(32, 3x3, 2)",
        "Block(32, 3x3, 1)", "Block(64, 3x3, 2)", "Block(64, 3x3, 1)", "FC(10)",
    ],
    "wide-resnet28": [
        "Conv(16, 3x3, 1)", *["Wide-Block(16, 3x3, 1, 0.3)"] * 4, "Wide-Block(32, 3x3, 2, 0.3)",
        *["Wide-Block(32, 3x3, 1, 0.3)"] * 3, "Wide-Block(64, 3x3, 2, 0.3)", *["Wide-Block(64, 3x3, 1, 0.3)"] * 3,
        "BN", "ReLU", "FC(10)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_the_networks_are_built_as_printed(name):
    got = list(layers(network(name)))
    assert [text for text, _ in got if text not in ("Pool", "Normalise")] == PRINTED[name]
    built = models.build(name) if name != "wide-resnet28" else None
    if built is not None:
        whole = nn.Sequential(built.encoder, built.classifier)
        assert sum(own for _, own in got) == sum(parameter.numel() for parameter in whole.parameters())


def test_listings_add_up():
    table = TABLES["table-7"]
    assert table.head == tuple(NETWORK_NAMES.values())
    for column, total in enumerate(table.rows[-1]):
        lines = [row[column] for row in table.rows[:-1]]
        own = sum(int(line.partition(": ")[2].replace(",", "")) for line in lines if ": " in line)
        assert total == f"in all: {own:,}"
    assert table.rows[-1][3] == "in all: 36,489,290"
    used = {row[0]: row[2:] for row in TABLES["table-5"].rows}
    assert used["FC(m)"] == ("3", "2", "1", "1")
    assert used["ShortCut"] == ("0", "0", "6", "12")
    (small, wide), lines = TABLES["table-6"].head, TABLES["table-6"].rows
    for column, whole in enumerate((small, wide)):
        parts = [line[column].partition(": ")[2] for line in lines]
        assert sum(int(part.replace(",", "")) for part in parts if part) == int(whole.split(": ")[1].replace(",", ""))
    assert [line[0].partition(":")[0] for line in lines[:-1]] == [
        "Conv(32, 3x3, 2)", "BN", "ReLU", "Conv(32, 3x3, 1)", "BN", "ShortCut", "ReLU"
    ]  # fmt: skip


def test_a_network_is_listed_without_drawing_weights():
    before = torch.get_rng_state()
    assert all(parameter.is_meta for parameter in network("wide-resnet28").parameters())
    assert torch.equal(before, torch.get_rng_state())


def test_a_layer_without_notation_is_refused():
    with pytest.raises(NotImplementedError, match="GELU"):
        list(layers(nn.GELU()))
