"""The one projected-gradient loop: an attack ascends it, a purifier descends it.

Algorithm 1 (PGD) and Algorithm 2 (purification) of the paper are the same walk: take the gradient of a
per-example loss with respect to the input, step along it, project onto a ball around the origin, then onto
the legal range of inputs. The loss comes in as a callable; what it means is the caller's business.
"""

from collections.abc import Callable

import torch

from soap.balls import Ball
from soap.errors import InputError
from soap.shapes import Float, Tensor

Loss = Callable[[Tensor], Tensor]
"""x [batch, ...] -> one loss a row [batch]; rows must not influence each other."""

Bounds = tuple[float, float]
"""Smallest and largest legal value of an input coordinate."""

UNIT: Bounds = (0.0, 1.0)


def slope(loss: Loss, x: Float[Tensor, "batch *shape"]) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch *shape"]]:
    """The loss of every row and its gradient with respect to `x`; parameters get no gradient.

    One forward and one backward pass. Works under `torch.no_grad` and `torch.inference_mode` too.
    """
    return pull_back(loss, x, torch.ones_like)


def pull_back(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "batch *shape"], upstream: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Float[Tensor, "batch *shape"]]:
    """`function(x)`, and the gradient in `x` of a loss whose gradient in `function(x)` is `upstream(function(x))`."""
    with torch.inference_mode(False), torch.enable_grad():
        # clone: a tensor made under inference_mode cannot be recorded by autograd.
        point = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
        out = function(point)
        above = upstream(out.detach())
        gradient = torch.autograd.grad(out, point, above, allow_unused=True)[0] if out.requires_grad else None
    if gradient is None:
        raise InputError(
            "the loss carries no gradient to its input: the model detaches it or runs under no_grad. "
            "Attack and purify a model whose output is differentiable in its input."
        )
    return out.detach(), gradient


def advance(
    x: Float[Tensor, "batch *shape"],
    gradient: Float[Tensor, "batch *shape"],
    *,
    origin: Float[Tensor, "batch *shape"],
    ball: Ball,
    step_size: float,
    bounds: Bounds = UNIT,
) -> Float[Tensor, "batch *shape"]:
    """One step along `gradient` (descent: a negative `step_size`), kept in the ball and in the bounds."""
    delta = ball.project(x + step_size * ball.steepest(gradient) - origin)
    return (origin + delta).clamp(*bounds)


def ascend(
    loss: Loss,
    origin: Float[Tensor, "batch *shape"],
    *,
    ball: Ball,
    step_size: float,
    steps: int,
    start: Float[Tensor, "batch *shape"] | None = None,
    bounds: Bounds = UNIT,
    keep_best: bool = False,
) -> Float[Tensor, "batch *shape"]:
    """Walk `steps` projected steps uphill from `start` (default: `origin`) inside the ball around `origin`.

    `keep_best` returns the visited point of highest loss instead of the last one, at the cost of one more
    forward pass for the last point. Steps downhill are steps uphill on the negated loss.
    """
    x = origin if start is None else start
    best, highest = x, x.new_full((len(x),), -torch.inf)
    for _ in range(steps):
        losses, gradient = slope(loss, x)
        if keep_best:
            best, highest = _better(x, losses, best, highest)
        x = advance(x, gradient, origin=origin, ball=ball, step_size=step_size, bounds=bounds)
    if not keep_best:
        return x
    with torch.no_grad():
        best, _ = _better(x, loss(x), best, highest)
    return best


def _better(x: Tensor, losses: Tensor, best: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
    """Row by row, the point of higher loss."""
    wins = losses > highest
    chosen = torch.where(wins.reshape(-1, *[1] * (x.ndim - 1)), x, best)
    return chosen, torch.where(wins, losses, highest)
