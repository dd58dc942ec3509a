"""One pass of a network, and the pass back to its input, replayed.

An attack asks a network thousands of times, in batches that shrink as images fall. Called kernel by kernel, a small
network on a GPU spends that time launching kernels, and for every new batch size on choosing convolutions. Recordings,
padded to a few sizes, do neither.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from soap._runtime import cuda_graphs
from soap._runtime.cuda_graphs import TensorFunction, min_rows_for_determinism, release_graphs, replayed
from soap._runtime.splitting import in_chunks
from soap.errors import InputError
from soap.shapes import Float, Tensor
from soap.validate import describe

MOST = 512
"""Rows passed at once at most: more are hardly faster, and a power of two is what a replay is padded to."""


def replays(model: object, x: Float[Tensor, "batch *shape"]) -> bool:
    """Whether passes of `model` are replayed: it lies on a GPU, promises to be `recordable`, and does not learn."""
    return (
        isinstance(model, nn.Module)
        and cuda_graphs.is_replayable(model, x)
        and not any(m.training for m in model.modules())
    )


def answers(model: nn.Module, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
    """`model(x)`, without a graph."""
    return _in_parts(model, "answers", partial(_answers, model), x)


def purified_by(purify: Callable[[Tensor], object], x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """The images that anybody's purifier makes of `x`, without a graph: a tensor, or `.x` of what it returns."""
    with torch.enable_grad():  # a purifier may differentiate, and not everyone's asks for it
        made = purify(x.detach())
    images = made if isinstance(made, Tensor) else getattr(made, "x", made)
    if not isinstance(images, Tensor) or images.shape != x.shape:
        raise InputError(
            f"the purifier returned {describe(images)}, want purified images of shape {list(x.shape)}, "
            "as a tensor or as `.x` of what it returns."
        )
    return images.detach()


def straight_through(
    model: nn.Module, x: Float[Tensor, "batch *shape"], purified: Float[Tensor, "batch *shape"]
) -> Float[Tensor, "batch classes"]:
    """`model(purified)`, differentiable with respect to `x` as if a purifier were the identity."""
    if torch.is_grad_enabled() and x.requires_grad:
        purified = purified + (x - x.detach())  # adds zero, and the identity's gradient
    elif not torch.is_grad_enabled() and replays(model, purified):
        return answers(model, purified)
    logits: Tensor = model(purified)
    return logits


def pulled_back(
    model: nn.Module, x: Float[Tensor, "batch *shape"], upstream: Float[Tensor, "batch classes"]
) -> Float[Tensor, "batch *shape"]:
    """The gradient with respect to `x` of a loss whose gradient with respect to `model(x)` is `upstream`."""
    return _in_parts(model, "pulled back", partial(_pulled_back, model), x, upstream)


def _in_parts(model: nn.Module, key: str, function: TensorFunction, *inputs: Tensor) -> Tensor:
    replay = partial(replayed, model, key, function)
    with torch.inference_mode(False):  # autograd cannot record tensors made under it
        inputs = tuple(tensor.clone() if tensor.is_inference() else tensor.detach() for tensor in inputs)
        least = min_rows_for_determinism(model, *inputs)
        (out,) = in_chunks(replay, *inputs, max_rows=MOST, min_rows=least, release=partial(release_graphs, model))
    return out


def _answers(model: nn.Module, x: Tensor) -> tuple[Tensor]:
    with torch.no_grad():
        return (model(x),)


def _pulled_back(model: nn.Module, x: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        return torch.autograd.grad(model(point), point, upstream)
