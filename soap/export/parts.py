"""The parts that can be exported: functions of tensors with named inputs and outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import UNIT, loss_and_gradient
from soap.purifiers import SOAP
from soap.shapes import Tensor

PARTS = ("classifier", "loss", "step", "whole")
"""All but the classifier need an auxiliary task."""

EXAMPLE_BATCH = 3
"""Batch size of the example inputs; torch treats 0 and 1 as special sizes."""


@dataclass(frozen=True, kw_only=True)
class ExportPart:
    """One function to export; `examples` are distinct input tensors of the right shapes."""

    function: Callable[..., Any]
    examples: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def classifier(model: JointModel) -> ExportPart:
    """x -> logits."""

    def forward(x: Tensor) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    return ExportPart(function=forward, examples=(_images(model),), inputs=("x",), outputs=("logits",))


def loss(model: JointModel) -> ExportPart:
    """x -> the auxiliary loss [batch] that purification minimises and chooses a radius by."""

    def forward(x: Tensor) -> Tensor:
        return model.auxiliary.loss(model, x)

    return ExportPart(function=forward, examples=(_images(model),), inputs=("x",), outputs=("loss",))


def step(model: JointModel) -> ExportPart:
    """One step of Algorithm 2: (x, x0, step_size [], eps [batch]) -> x_next, inside eps of x0 and inside [0, 1]."""

    def forward(x: Tensor, x0: Tensor, step_size: Tensor, eps: Tensor) -> Tensor:
        _, gradient = loss_and_gradient(lambda point: model.auxiliary.loss(model, point), x)
        ball = Linf(eps)
        # The same as `advance`, with the step size as an input of the graph.
        delta = ball.project(x - step_size * ball.steepest(gradient) - x0)
        return (x0 + delta).clamp(*UNIT)

    # Two tensors: if x and x0 were the same, torch would make one input of them.
    x, x0 = _images(model), _images(model)
    return ExportPart(
        function=forward,
        examples=(x, x0, x.new_tensor(0.1), x.new_full((EXAMPLE_BATCH,), 0.3)),
        inputs=("x", "x0", "step_size", "eps"),
        outputs=("x_next",),
    )


def whole(purifier: SOAP) -> ExportPart:
    """x -> the purified x, its logits, the radius that was used, and the auxiliary loss before and after."""

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        purified, eps, loss_before, loss_after = purifier._purified(x)
        return purified, purifier.model(purified), eps, loss_before, loss_after

    return ExportPart(
        function=forward,
        examples=(_images(purifier.model),),
        inputs=("x",),
        outputs=("purified", "logits", "eps", "loss_before", "loss_after"),
    )


def _images(model: JointModel) -> Tensor:
    """Grey images of the model's input shape."""
    parameter = next(model.parameters())
    return torch.full((EXAMPLE_BATCH, *model.input_shape), 0.5, dtype=parameter.dtype)
