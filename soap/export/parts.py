"""The parts that can be exported: functions of tensors with named inputs and outputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

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


class ExportPart(NamedTuple):
    """One function to export; `examples` are distinct input tensors of the right shapes."""

    function: Callable[..., Any]
    examples: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def export_part(name: str, model: JointModel, purifier: SOAP | None = None) -> ExportPart:
    """One of `PARTS`; whole needs a purifier."""

    def classifier(x: Tensor) -> Tensor:
        return model(x)  # type: ignore[no-any-return]

    def loss(x: Tensor) -> Tensor:
        """The auxiliary loss [batch] that purification minimises and chooses a radius by."""
        return model.auxiliary.loss(model, x)

    def step(x: Tensor, x0: Tensor, step_size: Tensor, eps: Tensor) -> Tensor:
        """One step of Algorithm 2, inside eps [batch] of x0 and inside [0, 1]; step_size has no dimension."""
        _, gradient = loss_and_gradient(loss, x)
        ball = Linf(eps)
        # The same as `advance`, with the step size as an input of the graph.
        delta = ball.project(x - step_size * ball.steepest(gradient) - x0)
        return (x0 + delta).clamp(*UNIT)

    def whole(x: Tensor) -> tuple[Tensor, ...]:
        if purifier is None:
            raise TypeError("the part 'whole' needs a purifier")
        purified, eps, loss_before, loss_after = purifier._purified(x)
        return purified, purifier.model(purified), eps, loss_before, loss_after

    # Two tensors: if x and x0 were the same, torch would make one input of them.
    x, x0 = (
        torch.full((EXAMPLE_BATCH, *model.input_shape), 0.5, dtype=next(model.parameters()).dtype) for _ in range(2)
    )
    step_examples = (x, x0, x.new_tensor(0.1), x.new_full((EXAMPLE_BATCH,), 0.3))
    parts = {
        "classifier": ExportPart(classifier, (x,), ("x",), ("logits",)),
        "loss": ExportPart(loss, (x,), ("x",), ("loss",)),
        "step": ExportPart(step, step_examples, ("x", "x0", "step_size", "eps"), ("x_next",)),
        "whole": ExportPart(whole, (x,), ("x",), ("purified", "logits", "eps", "loss_before", "loss_after")),
    }
    return parts[name]
