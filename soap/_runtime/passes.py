"""Forward passes and input gradients of a network, replayed as CUDA graphs where possible.

An attack makes thousands of passes in batches that shrink as samples are misclassified. A small network on a GPU then
spends most time on launching kernels, and on selecting convolution algorithms for every new batch size. Replayed
graphs, padded to a few sizes, avoid both.
"""

from functools import partial

import torch
from torch import nn

from soap._runtime import cuda_graphs
from soap._runtime.cuda_graphs import Function, forget, least_rows, replayed
from soap._runtime.splitting import by_rows
from soap.shapes import Float, Tensor

MAX_ROWS_PER_PASS = 512
"""Larger passes are hardly faster. A power of two, because replays are padded to powers of two."""


def is_replayed(model: object, x: Float[Tensor, "batch *shape"]) -> bool:
    """Return whether passes of `model` are replayed: on a GPU, `recordable`, and no submodule in training mode."""
    return (
        isinstance(model, nn.Module) and cuda_graphs.replays(model, x) and not any(m.training for m in model.modules())
    )


def forward_logits(model: nn.Module, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
    """Return `model(x)` without an autograd graph."""
    return _in_parts(model, "forward", partial(_forward, model), x)


def input_gradient(
    model: nn.Module, x: Float[Tensor, "batch *shape"], upstream: Float[Tensor, "batch classes"]
) -> Float[Tensor, "batch *shape"]:
    """Return the gradient with respect to `x` of a loss whose gradient with respect to `model(x)` is `upstream`."""
    return _in_parts(model, "input gradient", partial(_backward, model), x, upstream)


def _in_parts(model: nn.Module, key: str, function: Function, *inputs: Tensor) -> Tensor:
    replay = partial(replayed, model, key, function)
    with torch.inference_mode(False):  # autograd cannot record tensors made in inference mode
        inputs = tuple(tensor.clone() if tensor.is_inference() else tensor.detach() for tensor in inputs)
        least = least_rows(model, *inputs)
        (out,) = by_rows(replay, *inputs, most=MAX_ROWS_PER_PASS, least=least, free=partial(forget, model))
    return out


def _forward(model: nn.Module, x: Tensor) -> tuple[Tensor]:
    with torch.no_grad():
        return (model(x),)


def _backward(model: nn.Module, x: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return torch.autograd.grad(model(point), point, upstream)
