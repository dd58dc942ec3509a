"""The gradient through all steps of a purification, with a smooth surrogate for the derivative of sign.

A step is x_{t+1} = clip_[0,1](x_0 + clip_eps(x_t - gamma * sign(g(x_t)) - x_0)), g the gradient of the auxiliary loss.
The derivative of sign is zero almost everywhere, so the backward pass uses the derivative of

    s(g) = tanh(g / (scale * r)),    r = the root mean square of g, for each image,

and differentiates g once more, through the second derivatives of the network. Constants in this gradient are: r, the
radius eps that the purifier selected, and everything that the auxiliary task detaches from autograd. For the gradients
of the label-consistency task this means:

- "exact": nothing is detached;
- "stop": the second view is a fixed target, so its dependence on the image is left out;
- "paper": g is the floor-indexed gradient, and so is the second backward pass through the second view. dg/dx is
  symmetric, like a true second derivative, but it is not the derivative of g.
"""

from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from soap import validate
from soap._runtime import cuda_graphs
from soap._runtime.cuda_graphs import Function, forget, replayed
from soap._runtime.isolation import isolated
from soap._runtime.splitting import by_rows
from soap.balls import Linf
from soap.descent import Bounds
from soap.errors import InputError
from soap.gradient_rules.double_backward import FixedConvolutions
from soap.gradient_rules.rule import Criterion, GradientRule, Purify, logits_and_gradient
from soap.shapes import Float, Tensor

CLIP_TOLERANCE = 1e-3
"""A coordinate that exceeds a clip bound by at most this share of a step counts as not clipped: radii are multiples of
the step size, so rounding would otherwise decide."""

MAX_ROWS_PER_BACKWARD_STEP = 256
"""Samples in one replayed backward step on a GPU; more are hardly faster."""


@runtime_checkable
class UnrollablePurifier(Protocol):
    """A purifier made of projected sign steps on a loss, which returns its iterates."""

    step_size: float
    steps: int
    bounds: Bounds

    def __call__(self, x: Tensor) -> object:
        """Return the purified images, as a tensor or as attribute `.x` of the result."""

    def loss(self, x: Tensor) -> Tensor:
        """Return the loss that the steps descend, [batch], twice differentiable in `x`."""

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the iterates x_0 ... x_T, [T + 1, batch, ...], and the radius of every sample, [batch].

        x_0 is `x`, or `x` plus an offset that counts as a constant.
        """


class Unrolled(GradientRule):
    """The gradient through the purifier's own T steps, with sign replaced by tanh in the backward pass.

    scale: width of the surrogate in units of the gradient's root mean square. A small scale is close to sign, a large
    one nearly linear. No value is best for all models: try several.
    smooth: use the surrogate in the forward pass, too. This attacks a different defence, but the gradient is exact, so
    finite differences can check it (with r constant).

    Cost per call: one purification, one forward and one backward pass of the classifier, and for each of the T steps a
    gradient and its derivative, a backward pass about twice as long (`smooth` adds one gradient). The backward pass
    goes through the stored iterates one step at a time, so memory does not grow with T.
    """

    purifier: UnrollablePurifier

    def __init__(
        self, classifier: nn.Module, purifier: UnrollablePurifier, *, scale: float = 1.0, smooth: bool = False
    ) -> None:
        if not self.applies_to(purifier):
            raise InputError(
                f"got the purifier {validate.describe(purifier)}, expected one with step_size, steps, bounds, loss(x) "
                'and route(x), like soap.SOAP; use the rule "straight-through" for other purifiers.'
            )
        validate.positive("scale", scale)
        super().__init__(classifier, purifier)
        self.scale = scale
        self.smooth = smooth

    @classmethod
    def applies_to(cls, purifier: Purify) -> bool:
        """Return whether the purifier has step_size, steps, bounds, loss and route."""
        return isinstance(purifier, UnrollablePurifier)

    def extra_repr(self) -> str:
        """Return the settings of the surrogate."""
        return f"scale={self.scale}, smooth={self.smooth}"

    def purified(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the purified images; with `smooth`, the end points of the surrogate's steps."""
        if not self.smooth:
            return super().purified(x)
        with torch.inference_mode(False):
            return self._route(x.detach().clone())[0][-1]

    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits and the gradient of `criterion` with respect to `x` through classifier and purifier."""
        with isolated(self), torch.inference_mode(False):
            x = x.detach().clone()  # autograd cannot record tensors made in inference mode
            path, eps = self._route(x)
            logits, upstream = logits_and_gradient(self.classifier, path[-1], criterion)
            of_origin = torch.zeros_like(x)
            for point in path[:-1].flip(0):
                upstream, further = self._in_parts(self._backward_step, point, x, eps, upstream)
                of_origin = of_origin + further
            return logits, upstream + of_origin

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the iterates that are differentiated, and the radii."""
        path, eps = self.purifier.route(x)
        if not self.smooth:
            return path, eps
        points = [path[0]]
        for _ in range(self.purifier.steps):
            points.append(self._in_parts(self._forward_step, points[-1], x, eps)[0])
        return torch.stack(points), eps

    def _in_parts(self, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return `function(*inputs)`, replayed if the purifier's network is recordable, in parts that fit memory."""
        network = getattr(self.purifier, "recorded_by", None)
        settings = (repr(self.purifier), self.purifier.bounds, self.scale, self.smooth, function.__name__)
        most = MAX_ROWS_PER_BACKWARD_STEP if cuda_graphs.replays(network, *inputs) else None
        replay = partial(replayed, network, settings, function)
        return by_rows(replay, *inputs, most=most, free=partial(forget, network or self.classifier))

    def _forward_step(self, point: Tensor, origin: Tensor, eps: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return (self._step(point.detach().requires_grad_(), origin, eps).detach(),)

    def _backward_step(self, point: Tensor, origin: Tensor, eps: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of a step with respect to its starting point x_t and to the ball's centre x_0."""
        with torch.enable_grad():
            point, origin = point.detach().requires_grad_(), origin.detach().requires_grad_()
            return torch.autograd.grad(self._step(point, origin, eps), (point, origin), upstream)

    def _step(self, point: Tensor, origin: Tensor, eps: Tensor) -> Tensor:
        """Return x_{t+1}, differentiable in x_t and x_0. Without `smooth`, only its gradient is used."""
        gamma, (low, high) = self.purifier.step_size, self.purifier.bounds
        slack = 0.0 if self.smooth else CLIP_TOLERANCE * gamma
        with FixedConvolutions():
            (gradient,) = torch.autograd.grad(self.purifier.loss(point).sum(), point, create_graph=True)
        step = (gradient / self._width(gradient.detach())).tanh()
        if not self.smooth:
            step = step + (gradient.sign() - step).detach()
        delta = Linf(eps + slack).project(point - gamma * step - origin)
        return (origin + delta).clamp(low - slack, high + slack)

    def _width(self, gradient: Tensor) -> Tensor:
        """Return scale * r of every sample; infinite where the gradient vanishes, so that the surrogate is zero."""
        rows = gradient.flatten(1)
        peak = rows.abs().amax(1, keepdim=True)
        tiny = torch.finfo(rows.dtype).tiny
        r = peak * (rows / peak.clamp_min(tiny)).square().mean(1, keepdim=True).sqrt()  # r^2 itself may underflow
        width = (self.scale * r).reshape(-1, *[1] * (gradient.ndim - 1))
        return width.masked_fill(~(width > tiny), torch.inf)
