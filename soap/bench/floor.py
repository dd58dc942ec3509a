"""The floor: a lower bound on an algorithm's time, from its arithmetic and memory traffic on this device.

Operations are those of the matrix products and convolutions that the algorithm needs. Bytes are those of a network run
layer by layer: each product reads its input once and writes its output once, weights are read once per pass, the
backward pass costs the same again, and everything between two products (batch norm, ReLU, views) is fused into them.
Both are divided by rates measured on the device just before; the larger time is the floor.
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

PRODUCT_LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The highest measured operations and bytes per second of the device, in one precision."""

    operations: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations and bytes of a computation."""

    operations: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(operations=self.operations + other.operations, bytes=self.bytes + other.bytes)

    def times(self, samples: float, more_bytes: float) -> "Work":
        """The work of `samples` times as many samples, and further bytes."""
        return Work(operations=self.operations * samples, bytes=self.bytes * samples + more_bytes)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a function of a batch: `forward` and `backward` per sample, and bytes of `weights` per pass."""

    forward: Work
    backward: Work
    weights: int

    def forwards(self, samples: float, passes: int) -> Work:
        """The forward work of `samples` in `passes` batches."""
        return self.forward.times(samples, passes * self.weights)

    def backwards(self, samples: float, passes: int) -> Work:
        """The backward work of `samples` in `passes` batches."""
        return self.backward.times(samples, passes * self.weights)

    def gradients(self, samples: float, passes: int) -> Work:
        """The forward and backward work of `samples` in `passes` batches."""
        return self.forwards(samples, passes) + self.backwards(samples, passes)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The lower bound in seconds, and the limiting resource: "operations" or "bytes"."""

    operations: float
    bytes: float
    rates: Rates
    seconds: float
    bound: str


def floor_of(work: Work, rates: Rates) -> Floor:
    """The floor of `work`: operations or bytes divided by their rate, whichever takes longer."""
    seconds = {"operations": work.operations / rates.operations, "bytes": work.bytes / rates.bytes}
    bound = max(seconds, key=lambda name: seconds[name])
    return Floor(operations=work.operations, bytes=work.bytes, rates=rates, seconds=seconds[bound], bound=bound)


def cost_of(function: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> Cost:
    """The cost per sample of `function(x)` and of its gradient with respect to everything that requires one.

    `network` contains the layers that `function` calls; only called layers count.
    """
    products: list[tuple[nn.Module, int]] = []
    hooks = [
        module.register_forward_hook(
            lambda module, inputs, output: products.append((module, inputs[0].nbytes + output.nbytes))
        )
        for module in network.modules()
        if isinstance(module, PRODUCT_LAYERS)
    ]
    try:
        with torch.enable_grad():
            with FlopCounterMode(display=False) as forward:
                value = function(x).sum()
            with FlopCounterMode(display=False) as backward:
                torch.autograd.backward(value)
    finally:
        for hook in hooks:
            hook.remove()
        network.zero_grad(set_to_none=True)
    moved = sum(count for _, count in products) / len(x)
    weights = sum(p.nbytes for module in {module for module, _ in products} for p in module.parameters())
    return Cost(
        forward=Work(operations=forward.get_total_flops() / len(x), bytes=moved),
        backward=Work(operations=backward.get_total_flops() / len(x), bytes=moved),
        weights=weights,
    )


def measure_rates(device: torch.device, precision: str = "fp32") -> Rates:
    """Rates of the faster of a large matrix product and a large convolution, and of a large copy (read plus written).

    With torch's default settings: on a GPU an fp32 convolution may use TF32 while a matrix product does not.
    """
    large = device.type != "cpu"
    side, images, channels = (8192, 256, 256) if large else (1024, 8, 64)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)  # not zeros: some chips process them faster

    matrix, other = draw(side, side), draw(side, side)
    batch, kernel = draw(images, channels, 32, 32), draw(channels, channels, 3, 3)
    source = torch.ones(2**28 if large else 2**25, device=device)
    target = torch.empty_like(source)
    with torch.no_grad(), devices.autocast(device, precision):
        product = _fastest(lambda: matrix @ other, device)
        convolution = min(
            _fastest(partial(F.conv2d, *(t.to(memory_format=layout) for t in (batch, kernel)), padding=1), device)
            for layout in (torch.contiguous_format, torch.channels_last)
        )
        copy = _fastest(lambda: target.copy_(source), device)
    return Rates(
        operations=max(2 * side**3 / product, 2 * images * channels**2 * 9 * 32 * 32 / convolution),
        bytes=2 * source.nbytes / copy,
    )


def _fastest(run: Callable[[], object], device: torch.device, tries: int = 7) -> float:
    """The shortest of several timings after a warm-up."""
    run()
    return min(seconds_of(run, device) for _ in range(tries))
