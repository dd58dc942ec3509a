"""Interval bound propagation (Gowal et al. 2018): margins that hold for every input of a box.

A box is given by its lowest and highest values, `low` and `high`. Each layer maps the box to a box that contains the
layer's outputs for all inputs of the box. Affine layers move the centre and multiply the radius by the absolute
weights; monotone layers map both ends. The last linear layer is applied to differences of classes, which is tighter
than bounds on the logits (the two logits of a margin depend on the same features).
"""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F

from soap.errors import InputError
from soap.models.batch_norm import RectifiedNorm
from soap.models.classifiers import Normalise
from soap.shapes import Float, Int, Tensor

MONOTONE = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Flatten, nn.Identity, nn.AvgPool2d, nn.MaxPool2d)
"""Layers without weights whose outputs do not decrease when an input increases."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def logits_and_margins(
    network: nn.Module,
    x: Float[Tensor, "batch *shape"],
    low: Float[Tensor, "batch *shape"],
    high: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch classes"]]:
    """Return the logits at `x`, and for each class k a lower bound of logit_y - logit_k over the box (0 for k = y).

    network: layers in a row, ending in a linear layer; a model with `encoder` and `classifier` counts as both in a row.
    In training mode batch norms use the statistics of `x` for the box, too, and update their running statistics.
    Both results are differentiable. Cost: about three forward passes.
    """
    *layers, last = layers_in_a_row(network)
    if not isinstance(last, nn.Linear):
        raise InputError(f"the last layer is {type(last).__name__}, expected nn.Linear for bounds on margins.")
    centre, radius = (high + low) / 2, (high - low) / 2
    for layer in layers:
        x, centre, radius = _through(layer, x, centre, radius)
    classes = torch.arange(last.out_features, device=y.device)
    weights = last.weight[y][:, None] - last.weight  # [batch, classes, features]
    bias = 0.0 if last.bias is None else last.bias[y][:, None] - last.bias
    middle = torch.einsum("bkf,bf->bk", weights, centre) + bias
    margins = middle - torch.einsum("bkf,bf->bk", weights.abs(), radius)
    return last(x), margins.masked_fill(classes == y[:, None], 0.0)


def is_certified(
    network: nn.Module,
    low: Float[Tensor, "batch *shape"],
    high: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
) -> Tensor:
    """Return which samples are classified as `y` at every input of the box (boolean, [batch]), up to float64 rounding.

    The bounds are computed in float64 by a copy of the network; logits computed in float32
    differ from them by rounding.
    """
    exact = deepcopy(network).double().eval().requires_grad_(False)
    with torch.no_grad():
        _, margins = logits_and_margins(exact, low.double(), low.double(), high.double(), y)
    wrong = torch.arange(margins.shape[1], device=y.device) != y[:, None]
    return (margins > 0).logical_or(~wrong).all(1)


def layers_in_a_row(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested `nn.Sequential`s, and of a model's encoder and classifier, in their order."""
    encoder, classifier = getattr(module, "encoder", None), getattr(module, "classifier", None)
    if isinstance(encoder, nn.Module) and isinstance(classifier, nn.Module):
        yield from layers_in_a_row(encoder)
        yield from layers_in_a_row(classifier)
    elif isinstance(module, nn.Sequential):
        for part in module:
            yield from layers_in_a_row(part)
    else:
        yield module


def _through(layer: nn.Module, x: Tensor, centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of a layer at `x`, and centre and radius of the box of its outputs."""
    if isinstance(layer, MONOTONE):
        low, high = layer(centre - radius), layer(centre + radius)
        return layer(x), (high + low) / 2, (high - low) / 2
    if isinstance(layer, nn.Dropout) and not layer.training:
        return x, centre, radius
    if isinstance(layer, nn.Linear):
        return layer(x), layer(centre), F.linear(radius, layer.weight.abs())
    if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
        weight = layer.weight.abs()
        wide = F.conv2d(radius, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        return layer(x), layer(centre), wide
    if isinstance(layer, Normalise):
        return layer(x), layer(centre), radius / layer.std
    if isinstance(layer, BATCH_NORMS) and not isinstance(layer, RectifiedNorm):
        return _through_batch_norm(layer, x, centre, radius)
    raise InputError(
        f"no interval bounds for {layer}; expected a row of convolutions, linear layers, batch norms, ReLU and flatten."
    )


def _through_batch_norm(
    layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor, centre: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = layer.running_mean, layer.running_var
    if layer.training:
        dimensions = [0, *range(2, x.ndim)]
        mean, variance = x.mean(dimensions), x.var(dimensions, unbiased=False)
    if mean is None or variance is None:
        raise InputError(f"{layer} has no running statistics; expected a batch norm with track_running_stats=True.")
    shape = (-1, *[1] * (x.ndim - 2))
    scale = ((variance + layer.eps).rsqrt() * layer.weight).reshape(shape)
    moved = (centre - mean.reshape(shape)) * scale + layer.bias.reshape(shape)
    return layer(x), moved, radius * scale.abs()
