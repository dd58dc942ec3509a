"""Tables 5 to 7 describe the networks that the code builds."""

import pytest
from torch import nn

from soap import models
from soap._runtime.isolation import preserved_random_state
from soap.models.batch_norm import Norm
from soap.models.classifiers import Block, Normalise, WideBlock
from soap.paper.figure_data import NETWORK_NAMES
from soap.paper.tables import TABLES


def named(module):
    """Layers of a network in the paper's notation with their parameters; a residual block is one line."""
    own = sum(parameter.numel() for parameter in module.parameters())
    match module:
        case nn.Sequential():
            return [line for part in module for line in named(part)]
        case Block() | WideBlock():
            first, last = (part for part in module.residual if isinstance(part, nn.Conv2d))
            stride = max(first.stride[0], last.stride[0])
            if isinstance(module, Block):
                return [(f"Block({last.out_channels}, 3x3, {stride})", own)]
            return [(f"Wide-Block({last.out_channels // 10}, 3x3, {stride}, 0.3)", own)]
        case Norm():
            return [("BN", own), *([("ReLU", 0)] if module.rectifies else [])]
        case nn.BatchNorm1d():
            return [("BN", own)]
        case nn.Conv2d():
            return [(f"Conv({module.out_channels}, 3x3, {module.stride[0]})", own)]
        case nn.Linear():
            return [(f"FC({module.out_features})", own)]
        case nn.Dropout():
            return [(f"Dropout({module.p:g})", own)]
        case nn.Flatten():
            return []
    return [({nn.ReLU: "ReLU", nn.AdaptiveAvgPool2d: "Pool", Normalise: "Normalise"}[type(module)], own)]


def written(text):
    """[("Block(16, 3x3, 1)", 4672)] * 2 from "Block(16, 3x3, 1) x 2: 9,344"."""
    name, _, count = text.partition(": ")
    name, _, times = name.partition(" x ")
    times = int(times or 1)
    return [(name, int(count.replace(",", "") or 0) // times)] * times


@pytest.mark.parametrize(("column", "name"), [*enumerate(NETWORK_NAMES)])
def test_table_7_lists_the_layers_and_parameters_of_every_network(column, name):
    with preserved_random_state():
        built = models.build(name)
    layers = named(nn.Sequential(built.encoder, built.classifier))
    *lines, total = (row[column] for row in TABLES["table-7"].rows)
    assert [line for text in lines if text for line in written(text)] == layers
    assert total == f"in all: {sum(own for _, own in layers):,}"
    assert TABLES["table-7"].head[column] == NETWORK_NAMES[name]


def test_the_parameters_of_a_block_add_up():
    head, lines = TABLES["table-6"].head, TABLES["table-6"].rows
    with preserved_random_state():
        blocks = (Block(16, 32, 2), WideBlock(160, 320, 2, 0.3))
    for column, block in enumerate(blocks):
        assert written(head[column]) == named(block)
        assert sum(written(line[column])[0][1] for line in lines) == written(head[column])[0][1]


def test_table_5_counts_the_modules():
    used = {row[0].partition("(")[0]: row[2:] for row in TABLES["table-5"].rows}
    fcn = [line.partition("(")[0].partition(":")[0] for line in (row[0] for row in TABLES["table-7"].rows[:-1]) if line]
    assert [int(used[kind][0]) for kind in ("FC", "ReLU", "Dropout", "Conv")] == [
        fcn.count(kind) for kind in ("FC", "ReLU", "Dropout", "Conv")
    ]
    assert used["ShortCut"] == ("0", "0", "6", "12")
