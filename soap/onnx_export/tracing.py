"""Trace a function of a batch, gradients inside it included, as one graph for batches of any size.

`torch.export` refuses a function that calls autograd, and `make_fx` with symbolic sizes fails where code calls
`len(x)`, which must be a plain number. So the function is traced on fake tensors with a batch of `BATCH_MARKER`
samples. Each number in the graph that is a multiple of the marker is replaced by that multiple of the batch size.

A purification step differentiates the network, so the graph contains the backward pass of each layer. Most backward
operators decompose into plain arithmetic. Those of convolutions and of average pooling are written here as (transposed)
convolutions, because ONNX has no operators for them.
"""

import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from soap.errors import InputError
from soap.shapes import Tensor

aten = torch.ops.aten

BATCH_MARKER = 1_000_003
"""The batch size during tracing: a prime that divides no other size in a network."""

OPERATOR = re.compile(r"(?:^|op='|torch\.ops\.)(aten\.\w+)")
"""An operator in a message of the exporter; the first one is the reason."""

READS_VALUES = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.unique", "aten._unique2")
"""Operators whose Python number or whose shape depends on the values of a tensor."""


def trace_batch(function: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
    """The graph of `function` for any batch size; the batch is the first dimension of each example that has one."""
    decompositions = {
        **torch.export.default_decompositions(),
        **get_decompositions([torch.ops.aten.max_pool2d_with_indices_backward]),
        **DECOMPOSITIONS,
    }
    with torch.no_grad(), BlockPooling(), plain_attention():
        # Run once with real tensors: those that are cached for later calls must not be fake tensors.
        function(*examples)
        with FakeTensorMode(allow_non_fake_inputs=True):
            shapes = [(BATCH_MARKER, *x.shape[1:]) if x.ndim else () for x in examples]
            marked = [torch.empty(shape, dtype=x.dtype) for shape, x in zip(shapes, examples, strict=True)]
            graph: GraphModule = make_fx(function, decompositions, _allow_non_fake_inputs=True)(*marked)
    _replace_batch_size(graph)
    return graph.eval()


def _replace_batch_size(graph: GraphModule) -> None:
    """Replace every multiple of `BATCH_MARKER` by that multiple of the first input's first dimension."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    with graph.graph.inserting_after(inputs[-1]):
        batch = graph.graph.call_function(torch.ops.aten.sym_size.int, (inputs[0], 0))
    multiples: dict[int, Node] = {1: batch}

    def symbolic(value: Any) -> Any:
        if (
            type(value) is not int or abs(value) < BATCH_MARKER or abs(value) == sys.maxsize
        ):  # maxsize is the end of an open slice
            return value
        times, rest = divmod(value, BATCH_MARKER)
        if rest:
            raise InputError(
                f"the model computes a size of {times} x batch + {rest}, which cannot be exported; "
                "a result must not depend on the other samples of its batch."
            )
        if times not in multiples:
            with graph.graph.inserting_after(batch):
                multiples[times] = graph.graph.call_function(operator.mul, (batch, times))
        return multiples[times]

    for node in calls:
        node.args = map_aggregate(node.args, symbolic)
        node.kwargs = map_aggregate(node.kwargs, symbolic)
    graph.recompile()


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """The input gradient of a convolution is a transposed convolution with the same weight, and vice versa."""
    if output_mask[1] or output_mask[2]:  # weights are frozen in every exported part
        return NotImplemented
    if transposed:
        none = [0] * len(stride)
        gradient_x = aten.convolution.default(gradient, weight, None, stride, padding, dilation, False, none, groups)
        for dim in range(2, x.ndim):  # an output padding beyond the stride makes it longer than x
            gradient_x = gradient_x.narrow(dim, 0, x.shape[dim])
        return gradient_x, None, None
    # Several input sizes give one output size; the output padding selects the right one.
    output_padding_x = [
        x.shape[2 + d] + 2 * padding[d] - dilation[d] * (weight.shape[2 + d] - 1) - 1
        - (gradient.shape[2 + d] - 1) * stride[d]
        for d in range(len(stride))
    ]  # fmt: skip
    return aten.convolution.default(
        gradient, weight, None, stride, padding, dilation, True, output_padding_x, groups
    ), None, None  # fmt: skip


def avg_pool2d_backward(
    gradient: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Each output's gradient, distributed over the pixels of its window: a transposed convolution with ones."""
    strides = stride or kernel  # an empty list means the kernel size
    pair = tuple((each[0], each[-1]) for each in (kernel, strides, padding))
    counts = [
        _window_counts(outputs, inputs, *(each[d] for each in pair), with_padding=count_include_pad)
        for d, (outputs, inputs) in enumerate(zip(gradient.shape[2:], x.shape[2:], strict=True))
    ]
    divisor: Any = divisor_override
    if divisor is None:
        divisor = torch.tensor([[float(h * w) for w in counts[1]] for h in counts[0]], dtype=x.dtype)
    channels = x.shape[-3]
    ones = torch.ones(channels, 1, *pair[0], dtype=x.dtype)
    spread: Tensor = F.conv_transpose2d(gradient / divisor, ones, stride=pair[1], groups=channels)
    for d in range(2):  # remove the padding; pixels that no window covers get 0
        start, size = pair[2][d], x.shape[2 + d]
        here = min(size, spread.shape[2 + d] - start)
        spread = spread.narrow(2 + d, start, here)
        if here < size:
            spread = F.pad(spread, (0, 0, 0, size - here) if d == 0 else (0, size - here))
    return spread


def _window_counts(
    outputs: int, inputs: int, kernel: int, stride: int, padding: int, *, with_padding: bool
) -> list[int]:
    """The number of positions along one axis that each window averages."""
    counts = []
    for position in range(outputs):
        start = position * stride - padding
        end = min(start + kernel, inputs + padding)
        counts.append(end - start if with_padding else min(end, inputs) - max(start, 0))
    return counts


@contextmanager
def plain_attention() -> Iterator[None]:
    """Context in which attention is computed with matrix products and a softmax, which have ONNX operators.

    The fused kernels of torch, that of `nn.TransformerEncoderLayer` included, have none for their gradients.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
}


class BlockPooling(TorchFunctionMode):
    """Context in which adaptive average pooling is a mean over blocks.

    On channels-last images torch's own version changes strides in place, which has no ONNX gradient.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.adaptive_avg_pool2d:
            return block_means(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def block_means(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """`adaptive_avg_pool2d` with blocks that do not overlap."""
    sizes = tuple(output_size) if isinstance(output_size, Sequence) else (output_size, output_size)
    height, width = input.shape[2:]
    block_rows, block_columns = sizes[0] or height, sizes[1] or width
    if height % block_rows or width % block_columns:
        raise InputError(
            f"adaptive average pooling from {height} x {width} to {block_rows} x {block_columns} has overlapping "
            "blocks, which cannot be exported; use an output size that divides the input size."
        )
    if block_rows == block_columns == 1:
        return input.mean((2, 3), keepdim=True)
    blocks = input.reshape(*input.shape[:2], block_rows, height // block_rows, block_columns, width // block_columns)
    return blocks.mean((3, 5))


class _CallingModules(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records by operator the innermost module that is the first to call it."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = tracker
        self.found: dict[str, str] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found.setdefault(str(function.overloadpacket), max(self.tracker.parents, key=len))
        return function(*args, **(kwargs or {}))


def export_problem(error: Exception, function: Callable[..., Any], examples: Sequence[Tensor]) -> str:
    """Why `function` cannot be exported, from the error of torch, and what to do."""
    found = OPERATOR.search(str(error))
    if found is None:
        return f"{str(error).strip().splitlines()[0]} Use operators of torch only, for batches of any size."
    called = found[1]
    with torch.no_grad(), ModuleTracker() as tracker, _CallingModules(tracker) as modules:
        function(*examples)
    # The name of a module begins with the class of the network. "Global": no module calls the operator.
    _, _, name = modules.found.get(called.removesuffix("_backward"), "").partition(".")
    where = f"the module {name} uses" if name else "it uses"
    if called in READS_VALUES:
        return f"{where} {called}, which depends on pixel values (.item(), `if`, a mask); use torch.where instead."
    return f"{where} {called}, which the exporter does not support; replace it, or leave out this part."
