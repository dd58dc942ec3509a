"""docs/scale.md is what the committed rows say, and its arithmetic is right."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from soap.bench import scale_page

ROOT = Path(__file__).parents[2]


class Bottleneck(nn.Module):
    """Three convolutions and a short cut, written out plainly."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        shapes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        self.path = nn.Sequential(*(layer for shape in shapes for layer in normed(*shape)))
        self.short = nn.Sequential(*normed(inputs, 4 * width, 1, stride)) if inputs != 4 * width else nn.Identity()

    def forward(self, x):
        return torch.relu(self.path(x) + self.short(x))


def normed(inputs, outputs, kernel, stride):
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def test_the_size_of_resnet_50_equals_that_of_the_network():
    with torch.device("meta"):
        layers = [*normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not block else 1))
                inputs = 4 * (64 << stage)
        network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)).eval()
        values = []
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(lambda _, given, out: values.append(given[0].numel() + out.numel()))
        with FlopCounterMode(display=False) as counted:
            network(torch.empty(1, 3, 224, 224))
    assert sum(parameter.numel() for parameter in network.parameters()) == scale_page.RESNET50_PARAMETERS
    assert counted.get_total_flops() == scale_page.RESNET50_OPERATIONS
    assert sum(values) == scale_page.RESNET50_VALUES


def test_a_ring_sends_what_every_process_passes_on():
    """Each of n processes passes n - 1 parts of the whole on to be added up, and as many to be handed round."""
    parts = 8
    sent = 0
    for _ in ("adding up", "handing round"):
        sent += sum(4 * 1000 // parts for _ in range(parts - 1))
    assert scale_page.exchanged(1000, parts) == sent
    assert scale_page.exchanged(1000, 1) == 0


def test_figures_follow_from_the_rows():
    rows = scale_page.gpu_rows(ROOT / "results")
    assert all("cpu" not in row["provenance"]["device"] for row in rows)
    row = dict(scale_page.trainings(rows)[0])
    ours = row["paths"]["ours"]
    slow = {**row, "paths": {**row["paths"], "ours": {**ours, "images_per_second": 1234.0}}}
    assert "| 1,234 |" in scale_page.measured([row, slow])  # the later of two that measured the same
    assert f"| {ours['images_per_second']:,.0f} |" not in scale_page.measured([row, slow])
    assert scale_page.rate(row) == pytest.approx(scale_page.operations(row) * ours["images_per_second"])


def test_the_estimate_halves_with_every_doubling_of_passes():
    found = re.findall(
        r"^\| [^|]+ \| ([\d,]+) \|", scale_page.imagenet(scale_page.gpu_rows(ROOT / "results")), re.MULTILINE
    )
    speeds = [int(cell.replace(",", "")) for cell in found]
    assert [round(speeds[0] / speed) for speed in speeds] == list(scale_page.PASSES_BY_TRAINING.values())
