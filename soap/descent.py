"""The projected-gradient loop: attacks ascend a loss with it, purifiers descend one.

Algorithm 1 (PGD) and Algorithm 2 (purification) of the paper are the same procedure: compute the gradient of a
per-sample loss with respect to the input, step along it, project onto a ball around the original input, then clip to
the range of valid inputs. The caller passes the loss.
"""

from collections.abc import Callable

import torch

from soap.balls import Ball
from soap.errors import InputError
from soap.shapes import Float, Tensor

Loss = Callable[[Tensor], Tensor]
"""x [batch, ...] -> one loss per sample [batch]. Samples must not influence each other."""

Bounds = tuple[float, float]
"""Smallest and largest valid value of an input."""

UNIT: Bounds = (0.0, 1.0)

Move = Callable[[int, Tensor, Tensor], Tensor]
"""(step number t = 1 ... T, points x_{t-1}, gradients at them) -> points x_t."""

Observe = Callable[[Tensor, Tensor], object]
"""(points, losses at them), called before each step; the result is ignored."""

Stop = Callable[[Tensor, Tensor], bool]
"""(points, losses at them) -> whether to stop before the next step."""


def loss_and_gradient(
    loss: Loss, x: Float[Tensor, "batch *shape"]
) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch *shape"]]:
    """Return the loss of every sample and its gradient with respect to `x`; parameters get no gradient.

    One forward and one backward pass. Works under `torch.no_grad` and `torch.inference_mode`, too.
    """
    return output_and_gradient(loss, x, torch.ones_like)


def output_and_gradient(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "batch *shape"], upstream: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Float[Tensor, "batch *shape"]]:
    """Return `function(x)` and the gradient in `x` of a loss whose gradient in the output is `upstream(output)`."""
    with torch.inference_mode(False), torch.enable_grad():
        # clone: autograd cannot record a tensor made in inference mode.
        point = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
        out = function(point)
        return out.detach(), gradient_of(out, point, upstream(out.detach()))


def gradient_of(out: Tensor, point: Tensor, upstream: Tensor, *, retain_graph: bool = False) -> Tensor:
    """Return the gradient in `point` of a loss with the gradient `upstream` in `out`; raise if there is no graph."""
    gradient = None
    if out.requires_grad:
        (gradient,) = torch.autograd.grad(out, point, upstream, retain_graph=retain_graph, allow_unused=True)
    if gradient is None:
        raise InputError(
            "the loss carries no gradient to its input: the model detaches it or runs under no_grad. "
            "Use a model whose output is differentiable in its input."
        )
    return gradient


def gradient_steps(
    loss: Loss,
    start: Float[Tensor, "batch *shape"],
    move: Move,
    *,
    steps: int,
    observe: Observe | None = None,
    stop: Stop | None = None,
) -> Float[Tensor, "..."]:
    """Take up to `steps` gradient steps from `start` and return the last points.

    Each step computes losses and gradients at the points, calls `observe` and `stop`, and moves the points. `observe`
    sees x_0 ... x_{T-1}; the function returns x_T. Nothing here waits for a GPU, except a `stop` that reads a value.
    """
    x = start
    for t in range(1, steps + 1):
        losses, gradient = loss_and_gradient(loss, x)
        if observe is not None:
            observe(x, losses)
        if stop is not None and stop(x, losses):
            break
        x = move(t, x, gradient)
    return x


def into_ball(
    point: Float[Tensor, "batch *shape"], origin: Float[Tensor, "batch *shape"], ball: Ball, bounds: Bounds = UNIT
) -> Float[Tensor, "batch *shape"]:
    """Project `point` onto the ball around `origin`, then clip it to the bounds."""
    return (origin + ball.project(point - origin)).clamp(*bounds)


def projected_step(
    x: Float[Tensor, "batch *shape"],
    gradient: Float[Tensor, "batch *shape"],
    *,
    origin: Float[Tensor, "batch *shape"],
    ball: Ball,
    step_size: float,
    bounds: Bounds = UNIT,
) -> Float[Tensor, "batch *shape"]:
    """Take one step along `gradient` (against it for a negative `step_size`), kept in the ball and in the bounds."""
    return into_ball(x + step_size * ball.steepest(gradient), origin, ball, bounds)


def projected_gradient(
    loss: Loss,
    origin: Float[Tensor, "batch *shape"],
    *,
    ball: Ball,
    step_size: float,
    steps: int,
    start: Float[Tensor, "batch *shape"] | None = None,
    bounds: Bounds = UNIT,
    keep_best: bool = False,
    observe: Observe | None = None,
    stop: Stop | None = None,
) -> Float[Tensor, "batch *shape"]:
    """Take `steps` projected steps from `start` (default: `origin`) inside the ball around `origin`.

    A positive `step_size` ascends the loss, a negative one descends it. `keep_best` returns the visited point of
    highest loss instead of the last point, for one more forward pass at the last point.
    """
    x = origin if start is None else start
    best, highest = x, x.new_full((len(x),), -torch.inf)

    def watch(point: Tensor, losses: Tensor) -> None:
        nonlocal best, highest
        if keep_best:
            best, highest = _higher(point, losses, best, highest)
        if observe is not None:
            observe(point, losses)

    def move(t: int, point: Tensor, gradient: Tensor) -> Tensor:
        return projected_step(point, gradient, origin=origin, ball=ball, step_size=step_size, bounds=bounds)

    x = gradient_steps(loss, x, move, steps=steps, observe=watch, stop=stop)
    if not keep_best:
        return x
    with torch.no_grad():
        best, _ = _higher(x, loss(x), best, highest)
    return best


def iterates(
    loss: Loss,
    origin: Float[Tensor, "batch *shape"],
    *,
    ball: Ball,
    step_size: float,
    steps: int,
    start: Float[Tensor, "batch *shape"] | None = None,
    bounds: Bounds = UNIT,
) -> list[Float[Tensor, "batch *shape"]]:
    """Return all points x_0 ... x_T of `projected_gradient`."""
    points: list[Tensor] = []
    last = projected_gradient(
        loss,
        origin,
        ball=ball,
        step_size=step_size,
        steps=steps,
        start=start,
        bounds=bounds,
        observe=lambda point, losses: points.append(point),
    )
    return [*points, last]


def _higher(x: Tensor, losses: Tensor, best: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for every sample, the point of higher loss and that loss."""
    wins = losses > highest
    chosen = torch.where(wins.reshape(-1, *[1] * (x.ndim - 1)), x, best)
    return chosen, torch.where(wins, losses, highest)
