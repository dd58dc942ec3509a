"""Autograd through a purifier whose only obstacles are steps: rounding, comparisons, and cuts of the graph.

A purifier that rounds and then denoises has no gradient as a whole, and straight-through (BPDA) treats all of it as
the identity, which ignores the denoiser. Here only the steps count as the identity; everything between them is
differentiated. The purifier runs unchanged: `StepsAsIdentity` intercepts torch's functions while it does.
"""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from soap._runtime.isolation import frozen
from soap.gradient_rules.rule import GradientRule, Purify, images_of, purified_images, straight_through_logits
from soap.shapes import Float, Tensor

ROUNDING = ("round", "floor", "ceil", "trunc", "fix", "sign", "sgn")
"""Functions whose derivative is zero almost everywhere; with a final underscore, in place."""

ORDERS = (
    "gt",
    "ge",
    "lt",
    "le",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "__gt__",
    "__ge__",
    "__lt__",
    "__le__",
)
CONVERSIONS = ("to", "type", "byte", "char", "short", "int", "long", "bool")

_GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class _StraightThrough(torch.autograd.Function):
    """`value`, with the gradient of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _straight_through(x: Tensor, value: Tensor) -> Tensor:
    """Return `value` with the gradient of `x`, whose shape it has."""
    straight: Tensor = _StraightThrough.apply(x, value)  # type: ignore[no-untyped-call]
    return straight


class StepsAsIdentity(TorchFunctionMode):
    """Context in which rounding has the derivative 1, and `detach`, `.data` and `no_grad` do not cut the graph.

    Results of comparisons and of conversions to integers carry a gradient, too: that of the difference of the two
    sides, or of the converted numbers. It appears where they become floating-point numbers again. Values do not change.
    `torch.inference_mode` and functions outside torch still cut the graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, tuple[Tensor, Tensor]] = {}
        """By the id of a tensor without a gradient: itself, so that the id stays unique, and the source of one."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name in ("detach", "detach_") or function == _GET_DATA:
            return args[0]
        if name == "_set_grad_enabled":
            return None
        plain = name.removesuffix("_")
        if plain in ROUNDING and not kwargs.get("out"):
            stepped = getattr(torch, plain)(args[0].detach(), *args[1:], **kwargs)
            straight = _straight_through(args[0], stepped)
            return args[0].copy_(straight) if name.endswith("_") else straight
        out = function(*args, **kwargs)
        if not isinstance(out, Tensor) or not args or not isinstance(args[0], Tensor):
            return out
        if not out.is_floating_point():
            if name in ORDERS and args[0].is_floating_point():
                self._sources[id(out)] = out, (args[0] - args[1]) * (-1 if name.strip("_").startswith("l") else 1)
            elif name in CONVERSIONS:
                source = self._with_gradient(args[0])
                if source.is_floating_point():
                    self._sources[id(out)] = out, source
        elif any(id(part) in self._sources for part in args):
            if name == "where":
                chosen = self._with_gradient(args[0])
                return out + (args[1] - args[2]) * (chosen - chosen.detach())
            return _straight_through(function(*map(self._with_gradient, args), **kwargs).to(out.dtype), out)
        return out

    def _with_gradient(self, value: Any) -> Any:
        """Return a tensor without a gradient as a floating-point tensor with that of its source; else the value."""
        if id(value) not in self._sources:
            return value
        source = self._sources[id(value)][1]
        return _straight_through(source, value.to(source.dtype))


class Relaxed(GradientRule):
    """Autograd through purifier and classifier, with the identity in place of the derivative of every step.

    `probe_gradient` finds by trying whether it gives a gradient. purifier: None for a network that purifies inside its
    forward pass. Cost per call: one forward and one backward pass of the purifier and of the classifier.
    """

    def __init__(self, classifier: nn.Module, purifier: Purify | None) -> None:
        super().__init__(classifier, purifier or nn.Identity())

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        with frozen(self):
            if not (torch.is_grad_enabled() and x.requires_grad):
                return straight_through_logits(self.classifier, x, purified_images(self.purifier, x))
            with StepsAsIdentity():
                logits: Tensor = self.classifier(images_of(self.purifier, x))
                return logits
