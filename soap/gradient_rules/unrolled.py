"""The gradient through all steps of a purification, with a smooth stand-in for the derivative of sign.

A step is x_{t+1} = clip_[0,1](x_0 + clip_eps(x_t - gamma * sign(g(x_t)) - x_0)), g the gradient of the auxiliary loss.
The derivative of sign is zero almost everywhere, so on the way back it is that of

    s(g) = tanh(g / (scale * r)),    r = the root mean square of g, for each image,

with g differentiated once more (second derivatives of the network are kept). Taken as constants are r, the radius eps
that the purifier chose, and whatever the task itself hides from autograd. For label consistency that means:

- "exact": nothing;
- "stop": view two stays a fixed target, so how it moves with the image is left out;
- "paper": g is the floor-indexed one, and so is the second pass back through view two; dg/dx is symmetric, as a true
  second derivative is, but is not the derivative of g.
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
from soap.attacks.bpda import Adaptive
from soap.attacks.second_derivatives import FixedConvolutions
from soap.attacks.sight import Criterion, look
from soap.balls import Linf
from soap.descent import Bounds
from soap.errors import InputError
from soap.shapes import Float, Tensor

TIE = 1e-3
"""A coordinate this share of a step past a clip is taken to lie on it: radii are whole numbers of steps, so rounding
would decide whether the clip binds."""

SIDE_BY_SIDE = 256
"""Rows that a GPU replays a step back for at once: more are hardly faster."""


@runtime_checkable
class Unrollable(Protocol):
    """A purifier made of projected sign steps on a loss, which tells the way it went."""

    step_size: float
    steps: int
    bounds: Bounds

    def __call__(self, x: Tensor) -> object:
        """The purified images, a tensor or something with `.x`."""

    def loss(self, x: Tensor) -> Tensor:
        """What the steps descend, [batch], twice differentiable in `x`."""

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The iterates x_0 ... x_T, [T + 1, batch, ...], and the radius of every row, [batch].

        x_0 is `x` or a start of the purifier's own: `x` moved by what is taken as a constant.
        """


class Unrolled(Adaptive):
    """The gradient through the purifier's own T steps, sign replaced by tanh on the way back.

    scale: how wide the stand-in is, in units of the gradient's root mean square; small is close to sign, large nearly
    linear. There is no right one: sweep it.
    smooth: walk with the stand-in, too. The defence attacked is then another one, but the gradient is its own and can
    be checked by finite differences (r held fixed).

    A look costs one purification, one forward and backward pass of the classifier, and for each of the T steps a
    gradient and its derivative, a backward pass about twice as long (and with `smooth` a gradient more). It goes back
    from the purifier's own iterates one step at a time, so memory does not grow with T.
    """

    purify: Unrollable

    def __init__(self, model: nn.Module, purifier: Unrollable, *, scale: float = 1.0, smooth: bool = False) -> None:
        if not isinstance(purifier, Unrollable):
            raise InputError(
                f"got the purifier {validate.describe(purifier)}, want one with step_size, steps, bounds, loss(x) and "
                "route(x), as soap.SOAP has them; without them use Bpda."
            )
        validate.positive("scale", scale)
        super().__init__(model, purifier)
        self.scale = scale
        self.smooth = smooth

    def extra_repr(self) -> str:
        """The stand-in."""
        return f"scale={self.scale}, smooth={self.smooth}"

    def purified(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """The purified images; with `smooth`, where the stand-in leads."""
        if not self.smooth:
            return super().purified(x)
        with torch.inference_mode(False):
            return self._route(x.detach().clone())[0][-1]

    def look(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Logits, and the gradient of `criterion` with respect to `x` through classifier and purifier."""
        with isolated(self), torch.inference_mode(False):
            x = x.detach().clone()  # autograd cannot record tensors made under inference_mode
            path, eps = self._route(x)
            logits, upstream = look(self.model, path[-1], criterion)
            of_origin = torch.zeros_like(x)
            for point in path[:-1].flip(0):
                upstream, further = self._in_parts(self._back, point, x, eps, upstream)
                of_origin = of_origin + further
            return logits, upstream + of_origin

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The iterates of the walk that is differentiated, and the radii."""
        path, eps = self.purify.route(x)
        if not self.smooth:
            return path, eps
        points = [path[0]]
        for _ in range(self.purify.steps):
            points.append(self._in_parts(self._forth, points[-1], x, eps)[0])
        return torch.stack(points), eps

    def _in_parts(self, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`function(*inputs)`, replayed where the purifier's network promises it for `loss`, too.

        The batch is halved where memory runs out.
        """
        network = getattr(self.purify, "recorded_by", None)
        settings = (repr(self.purify), self.purify.bounds, self.scale, self.smooth, function.__name__)
        most = SIDE_BY_SIDE if cuda_graphs.replays(network, *inputs) else None
        replay = partial(replayed, network, settings, function)
        return by_rows(replay, *inputs, most=most, free=partial(forget, network or self.model))

    def _forth(self, point: Tensor, origin: Tensor, eps: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return (self._step(point.detach().requires_grad_(), origin, eps).detach(),)

    def _back(self, point: Tensor, origin: Tensor, eps: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        """A step's gradients with respect to the point it starts from and to x_0, which its ball is around."""
        with torch.enable_grad():
            point, origin = point.detach().requires_grad_(), origin.detach().requires_grad_()
            return torch.autograd.grad(self._step(point, origin, eps), (point, origin), upstream)

    def _step(self, point: Tensor, origin: Tensor, eps: Tensor) -> Tensor:
        """x_{t+1}, differentiable in x_t and x_0; but for `smooth`, its value serves to tell which clips bind."""
        gamma, (low, high) = self.purify.step_size, self.purify.bounds
        slack = 0.0 if self.smooth else TIE * gamma
        with FixedConvolutions():
            (gradient,) = torch.autograd.grad(self.purify.loss(point).sum(), point, create_graph=True)
        step = (gradient / self._width(gradient.detach())).tanh()
        if not self.smooth:
            step = step + (gradient.sign() - step).detach()
        delta = Linf(eps + slack).project(point - gamma * step - origin)
        return (origin + delta).clamp(low - slack, high + slack)

    def _width(self, gradient: Tensor) -> Tensor:
        """scale * r of every row; where the gradient vanishes, so wide that the stand-in does too."""
        rows = gradient.flatten(1)
        peak = rows.abs().amax(1, keepdim=True)
        tiny = torch.finfo(rows.dtype).tiny
        r = peak * (rows / peak.clamp_min(tiny)).square().mean(1, keepdim=True).sqrt()  # squares of r may underflow
        width = (self.scale * r).reshape(-1, *[1] * (gradient.ndim - 1))
        return width.masked_fill(~(width > tiny), torch.inf)
