"""Tables 5 to 7 of the paper, generated from the networks that the code builds: modules, blocks, architectures."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, zip_longest

import torch
from torch import nn

from soap import models
from soap._runtime.isolation import preserved_random_state
from soap.models.architecture import Normalise
from soap.models.batch_norm import Norm
from soap.models.residual_networks import Block, WideBlock
from soap.paper.model_names import NETWORK_NAMES

WIDEN_FACTOR = 10

SPECIFICS = {
    "Conv": ("Conv(m, kxk, s)", "2-D convolution with m feature maps, a kxk kernel, and stride s in both directions"),
    "FC": ("FC(m)", "fully connected layer with m outputs"),
    "ReLU": ("ReLU", "rectified linear unit"),
    "BN": ("BN", "batch normalisation of vectors or of feature maps"),
    "Dropout": ("Dropout(p)", "dropout with probability p"),
    "ShortCut": ("ShortCut", "residual addition that bypasses the block; a 1x1 convolution where the shape changes"),
    "Pool": ("Pool", "mean over all places of a feature map; not printed"),
    "Normalise": ("Normalise", "subtract each channel's mean and divide by its deviation; not printed"),
}
"""Notation and meaning of each module. The paper also lists Maxpool(s), which none of its networks has."""

LayerLine = tuple[str, int]
"""A layer in the paper's notation, and its number of parameters."""


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of text: `head` above `rows`, notes below."""

    name: str
    title: str
    caption: str
    make: Callable[[], tuple[tuple[str, ...], list[tuple[str, ...]]]]
    notes: tuple[str, ...] = ()

    @cached_property
    def _content(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        return self.make()

    @property
    def table(self) -> "TextTable":
        """Itself: a table of text is shown as it is."""
        return self

    progress, missing_text = "from the code", ""

    @property
    def head(self) -> tuple[str, ...]:
        """Column titles."""
        return self._content[0]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows below the head, one text a column."""
        return self._content[1]


def parameter_count(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def layers(module: nn.Module) -> Iterator[LayerLine]:
    """Layers of a module in the paper's notation; a residual block is one line."""
    own = parameter_count(module)
    match module:
        case nn.Sequential():
            for part in module:
                yield from layers(part)
        case Block():
            first, _ = _convolutions(module.residual)
            yield f"Block({first.out_channels}, {_kernel(first)}, {first.stride[0]})", own
        case WideBlock():
            _, last = _convolutions(module.residual)
            (dropout,) = (part.p for part in module.residual if isinstance(part, nn.Dropout))
            settings = f"{last.out_channels // WIDEN_FACTOR}, {_kernel(last)}, {last.stride[0]}, {dropout:g}"
            yield f"Wide-Block({settings})", own
        case Norm():
            yield "BN", own
            if module.rectifies:
                yield "ReLU", 0
        case nn.BatchNorm1d():
            yield "BN", own
        case nn.Conv2d():
            yield f"Conv({module.out_channels}, {_kernel(module)}, {module.stride[0]})", own
        case nn.Linear():
            yield f"FC({module.out_features})", own
        case nn.Dropout():
            yield f"Dropout({module.p:g})", own
        case nn.ReLU():
            yield "ReLU", own
        case nn.AdaptiveAvgPool2d():
            yield "Pool", own
        case Normalise():
            yield "Normalise", own
        case nn.Flatten():
            return
        case _:
            raise NotImplementedError(f"the paper has no notation for {type(module).__name__}")


def inside(block: Block | WideBlock) -> Iterator[LayerLine]:
    """Layers of a residual block, with the shortcut at the point of its addition."""
    yield from layers(block.residual)
    short = ("ShortCut", parameter_count(block.shortcut))
    if isinstance(block, Block):  # the last norm adds the shortcut, then applies ReLU
        norm, relu = layers(block.join)
        yield from (norm, short, relu)
    else:
        yield short


def network(name: str) -> nn.Sequential:
    """Encoder and classifier of an architecture on the meta device: no random draw, no memory."""
    with preserved_random_state(), torch.device("meta"):
        built = models.build(name)
    return nn.Sequential(built.encoder, built.classifier)


def _convolutions(residual: nn.Sequential) -> list[nn.Conv2d]:
    return [part for part in residual if isinstance(part, nn.Conv2d)]


def _kernel(convolution: nn.Conv2d) -> str:
    return "x".join(map(str, convolution.kernel_size))


def _line_text(line: LayerLine) -> str:
    return f"{line[0]}: {line[1]:,}" if line[1] else line[0]


def _runs(lines: Iterator[LayerLine]) -> list[LayerLine]:
    """Consecutive equal lines joined into one."""
    runs = [(line, len([*equal])) for line, equal in groupby(lines)]
    return [(f"{text} x {times}" if times > 1 else text, times * own) for (text, own), times in runs]


def _side_by_side(columns: list[list[LayerLine]]) -> list[tuple[str, ...]]:
    return [tuple(map(_line_text, line)) for line in zip_longest(*columns, fillvalue=("", 0))]


def _modules() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    used = {name: Counter(text.partition("(")[0] for text, _ in _all_layers(network(name))) for name in NETWORK_NAMES}
    head = ("Module", "Specifics", *(f"in {label}" for label in NETWORK_NAMES.values()))
    return head, [(*words, *(str(used[name][key]) for name in NETWORK_NAMES)) for key, words in SPECIFICS.items()]


def _all_layers(whole: nn.Module) -> Iterator[LayerLine]:
    """All layers, also those inside blocks; the convolution of a shortcut counts as part of the shortcut."""
    for part in whole.children():
        if isinstance(part, nn.Sequential):
            yield from _all_layers(part)
        else:
            yield from inside(part) if isinstance(part, Block | WideBlock) else layers(part)


def _blocks() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    with preserved_random_state(), torch.device("meta"):
        small, wide = Block(16, 32, 2), WideBlock(16 * WIDEN_FACTOR, 32 * WIDEN_FACTOR, 2, 0.3)
    blocks = [next(layers(block)) for block in (small, wide)]
    return tuple(map(_line_text, blocks)), _side_by_side([[*inside(small)], [*inside(wide)]])


def _architectures() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    columns = [_runs(layers(network(name))) for name in NETWORK_NAMES]
    total = tuple(f"in all: {parameter_count(network(name)):,}" for name in NETWORK_NAMES)
    return tuple(NETWORK_NAMES.values()), [*_side_by_side(columns), total]


TEXT_TABLES = {
    "table-5": TextTable(
        name="table-5",
        title="Basic modules",
        caption="The modules that the networks are made of, and how many of them each network of the code has.",
        make=_modules,
        notes=("The paper also lists Maxpool(s); none of its networks has one.",),
    ),
    "table-6": TextTable(
        name="table-6",
        title="Residual blocks",
        caption="The blocks at their first width that changes the shape, layer by layer with parameters.",
        make=_blocks,
        notes=(
            "The Wide-Block is the usual pre-activation one: batch norm and ReLU stand before the convolution. The "
            "paper prints them at the end of the block before, which is the same chain cut elsewhere.",
        ),
    ),
    "table-7": TextTable(
        name="table-7",
        title="Architectures",
        caption="Encoder and classifier of each network, layer by layer with parameters.",
        make=_architectures,
        notes=(
            "The FCN of SOAP-DR is built without dropout, with which it purifies far worse.",
            "The paper prints the last group of the Wide-ResNet-28 with two blocks; the usual network of that name, "
            "built here, has four, as the two groups before it. Pool and Normalise are not printed.",
        ),
    ),
}
"""Tables 5, 6 and 7."""
