"""The floor: what the arithmetic and the memory traffic of an algorithm must take on this device.

Operations are those of the matrix products and convolutions that the algorithm needs; bytes are those of a network
run layer by layer: each product's input read once and its output written once, its weights read once a pass, the same
again on the way back, and everything between two products (batch norm, ReLU, views) fused into them. Both are divided
by rates that were measured on the device just before; the larger time is the floor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from soap._runtime import devices
from soap.bench.timing import seconds_of
from soap.shapes import Tensor

PRODUCTS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The most that the device was seen to do in a second, in the precision that is measured."""

    operations: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations and bytes of a piece of work."""

    operations: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(operations=self.operations + other.operations, bytes=self.bytes + other.bytes)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a function of a batch costs: `forward` and `backward` for one row, `weights` in bytes once a pass."""

    forward: Work
    backward: Work
    weights: int

    def forwards(self, rows: float, passes: int) -> Work:
        """So many rows forward, in so many batches."""
        return _times(self.forward, rows, passes * self.weights)

    def backwards(self, rows: float, passes: int) -> Work:
        """So many rows back, in so many batches."""
        return _times(self.backward, rows, passes * self.weights)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The least seconds for some work at some rates, and what sets them: "operations" or "bytes"."""

    operations: float
    bytes: float
    rates: Rates
    seconds: float
    bound: str


def floor(work: Work, rates: Rates) -> Floor:
    """Operations over their rate or bytes over theirs, whichever takes longer."""
    seconds = {"operations": work.operations / rates.operations, "bytes": work.bytes / rates.bytes}
    bound = max(seconds, key=lambda name: seconds[name])
    return Floor(operations=work.operations, bytes=work.bytes, rates=rates, seconds=seconds[bound], bound=bound)


def cost_of(function: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> Cost:
    """What one row of `function(x)` costs, and a row of its gradient with respect to all that requires one.

    `network` holds the layers that `function` calls; only those that are called count.
    """
    products: list[tuple[nn.Module, int]] = []
    hooks = [
        module.register_forward_hook(
            lambda module, inputs, output: products.append((module, _nbytes(inputs[0]) + _nbytes(output)))
        )
        for module in network.modules()
        if isinstance(module, PRODUCTS)
    ]
    try:
        with torch.enable_grad():
            with FlopCounterMode(display=False) as ahead:
                value = function(x).sum()
            with FlopCounterMode(display=False) as back:
                torch.autograd.backward(value)
    finally:
        for hook in hooks:
            hook.remove()
        network.zero_grad(set_to_none=True)
    moved = sum(count for _, count in products) / len(x)
    weights = sum(_nbytes(p) for module in {module for module, _ in products} for p in module.parameters())
    return Cost(
        forward=Work(operations=ahead.get_total_flops() / len(x), bytes=moved),
        backward=Work(operations=back.get_total_flops() / len(x), bytes=moved),
        weights=weights,
    )


def measure_rates(device: torch.device, precision: str = "fp32") -> Rates:
    """The faster of a large matrix product and a large convolution, and a large copy (bytes read plus written).

    As torch runs them by itself: on a GPU an fp32 convolution may use TF32 while a matrix product does not.
    """
    large = device.type != "cpu"
    side, images, channels = (8192, 256, 256) if large else (1024, 8, 64)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)  # never zeros: some chips run them faster

    matrix, other = draw(side, side), draw(side, side)
    batch, kernel = draw(images, channels, 32, 32), draw(channels, channels, 3, 3)
    source = torch.ones(2**28 if large else 2**25, device=device)
    target = torch.empty_like(source)
    with torch.no_grad(), devices.autocast(device, precision):
        product = _best(lambda: matrix @ other, device)
        convolution = min(
            _best(partial(F.conv2d, *(t.to(memory_format=layout) for t in (batch, kernel)), padding=1), device)
            for layout in (torch.contiguous_format, torch.channels_last)
        )
        copy = _best(lambda: target.copy_(source), device)
    return Rates(
        operations=max(2 * side**3 / product, 2 * images * channels**2 * 9 * 32 * 32 / convolution),
        bytes=2 * _nbytes(source) / copy,
    )


def _best(run: Callable[[], object], device: torch.device, tries: int = 7) -> float:
    """The shortest of several timings after a warm-up: a rate is what the device can do."""
    run()
    return min(seconds_of(run, device) for _ in range(tries))


def _times(work: Work, rows: float, more_bytes: float) -> Work:
    return Work(operations=work.operations * rows, bytes=work.bytes * rows + more_bytes)


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
