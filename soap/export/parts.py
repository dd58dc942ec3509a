"""What can be exported: functions of tensors, and what their inputs and outputs are called."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import UNIT, loss_and_gradient
from soap.purifiers import SOAP
from soap.shapes import Tensor

PARTS = ("classifier", "loss", "step", "whole")
"""Every part but the classifier needs an auxiliary task."""

EXAMPLES = 3
"""Rows to trace with; torch takes 0 and 1 for special sizes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One function to export; `examples` are inputs of the right shapes, each a tensor of its own."""

    name: str
    function: Callable[..., Any]
    examples: tuple[Tensor, ...] = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def classifier(model: JointModel) -> Part:
    """x -> logits."""

    def forward(x: Tensor) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    return Part(name="classifier", function=forward, examples=(_images(model),), inputs=("x",), outputs=("logits",))


def loss(model: JointModel) -> Part:
    """x -> the auxiliary loss [batch] that purification lowers, and by which it chooses a radius."""

    def forward(x: Tensor) -> Tensor:
        return model.auxiliary.loss(model, x)

    return Part(name="loss", function=forward, examples=(_images(model),), inputs=("x",), outputs=("loss",))


def step(model: JointModel) -> Part:
    """One step of Algorithm 2: (x, x0, step_size [], eps [batch]) -> x_next, inside eps of x0 and inside [0, 1]."""

    def forward(x: Tensor, x0: Tensor, step_size: Tensor, eps: Tensor) -> Tensor:
        _, gradient = loss_and_gradient(lambda point: model.auxiliary.loss(model, point), x)
        ball = Linf(eps)
        # What `advance` does; but here the step size is an input of the graph, too.
        delta = ball.project(x - step_size * ball.steepest(gradient) - x0)
        return (x0 + delta).clamp(*UNIT)

    # x and x0 are two tensors: of one alone torch would make one input of the graph.
    x, x0 = _images(model), _images(model)
    return Part(
        name="step",
        function=forward,
        examples=(x, x0, x.new_tensor(0.1), x.new_full((EXAMPLES,), 0.3)),
        inputs=("x", "x0", "step_size", "eps"),
        outputs=("x_next",),
    )


def whole(purifier: SOAP) -> Part:
    """x -> the purified x, its logits, the radius that was used, and the auxiliary loss before and after."""

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        purified, eps, loss_before, loss_after = purifier._purified(x)
        return purified, purifier.model(purified), eps, loss_before, loss_after

    return Part(
        name="whole",
        function=forward,
        examples=(_images(purifier.model),),
        inputs=("x",),
        outputs=("purified", "logits", "eps", "loss_before", "loss_after"),
    )


def _images(model: JointModel) -> Tensor:
    """A few grey images of the model's shape."""
    parameter = next(model.parameters())
    return torch.full((EXAMPLES, *model.input_shape), 0.5, dtype=parameter.dtype)
