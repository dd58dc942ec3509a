"""A function of a batch, gradients inside it included, as one graph that takes batches of any size.

`torch.export` refuses a function that calls autograd, and `make_fx` with symbolic sizes breaks where code asks for
`len(x)`, which must be a plain number. So the function is traced, without any computing, on a batch of `MARK` rows: a
prime that no other size has as a factor. Each number in the graph that is a multiple of it stands for that multiple of
the batch size, and is made so.
"""

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

from soap.errors import InputError
from soap.export.rules import RULES, PlainPooling
from soap.shapes import Tensor

MARK = 1_000_003


def traced(function: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
    """The graph of `function`; the first dimension of every example that has one is the batch, and free."""
    decompositions = {
        **torch.export.default_decompositions(),
        **get_decompositions([torch.ops.aten.max_pool2d_with_indices_backward]),
        **RULES,
    }
    with torch.no_grad(), PlainPooling():
        # Once for real: tensors that are made once and kept for later calls must not be made of the stand-ins below.
        function(*examples)
        with FakeTensorMode(allow_non_fake_inputs=True):
            marked = [torch.empty(MARK, *x.shape[1:], dtype=x.dtype) if x.ndim else torch.empty((), dtype=x.dtype)
                      for x in examples]  # fmt: skip
            graph: GraphModule = make_fx(function, decompositions, _allow_non_fake_inputs=True)(*marked)
    _free_batch(graph)
    return graph.eval()


def _free_batch(graph: GraphModule) -> None:
    """Replace every multiple of `MARK` by that multiple of the first input's first dimension."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    with graph.graph.inserting_after(inputs[-1]):
        batch = graph.graph.call_function(torch.ops.aten.sym_size.int, (inputs[0], 0))
    multiples: dict[int, Node] = {1: batch}

    def freed(value: Any) -> Any:
        if type(value) is not int or abs(value) < MARK or abs(value) == sys.maxsize:  # maxsize: to the end of a slice
            return value
        times, rest = divmod(value, MARK)
        if rest:
            raise InputError(
                f"the model makes a size of {times} x batch + {rest}, which cannot be exported; "
                "its rows must not depend on each other."
            )
        if times not in multiples:
            with graph.graph.inserting_after(batch):
                multiples[times] = graph.graph.call_function(operator.mul, (batch, times))
        return multiples[times]

    for node in calls:
        node.args = map_aggregate(node.args, freed)
        node.kwargs = map_aggregate(node.kwargs, freed)
    graph.recompile()
