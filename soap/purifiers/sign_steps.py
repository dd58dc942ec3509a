"""Base classes of purifiers that descend a loss by projected sign steps; the second, a loss of the logits."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.cuda_graphs import TensorFunction, min_rows_for_determinism, release_graphs, replayed
from soap._runtime.isolation import frozen, isolated
from soap._runtime.progress import purifying
from soap._runtime.splitting import in_chunks
from soap.balls import Linf
from soap.descent import UNIT, Bounds, Loss, iterates, projected_gradient
from soap.errors import InputError
from soap.purifiers.purifier import Purified, Specified
from soap.shapes import Float, Tensor

MAX_IMAGES_AT_ONCE = {"cpu": 128, "cuda": 1024}
"""More are slower on a CPU and hardly faster on a GPU. Powers of two, because replays are padded to them."""

LogitLoss = Callable[[Tensor], Tensor]
"""Logits [batch, classes] -> the loss that the steps descend, [batch]."""


class DescentPurifier(Specified):
    """`steps` projected sign steps of `step_size` on a loss, inside a ball around x and in `bounds`."""

    gradient = "unrolled"
    model: nn.Module
    step_size: float
    steps: int
    bounds: Bounds

    def path(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "steps1 batch *shape"]:
        """Return the start, which most purifiers take at `x`, and every point after it; the last are purified.

        The points are visited anyway, so they cost no more than purifying.
        """
        return self.route(x)[0]

    @abstractmethod
    def route(
        self, x: Float[Tensor, "batch *shape"]
    ) -> tuple[Float[Tensor, "steps1 batch *shape"], Float[Tensor, "batch"]]:
        """Return the points of `path` and the radius of every sample."""

    @property
    def recorded_by(self) -> nn.Module:
        """The network whose attribute `recordable` covers `loss`, too: nothing in `loss` waits for the host."""
        return self.model

    def _replayed(self, function: TensorFunction, *inputs: Tensor, max_rows: int | None) -> tuple[Tensor, ...]:
        """Return `function(*inputs)`, replayed as a CUDA graph if possible, in parts."""
        replay = partial(replayed, self.model, (repr(self), self.bounds, function.__name__), function)
        least = min_rows_for_determinism(self.model, *inputs)
        return in_chunks(
            replay, *inputs, max_rows=max_rows, min_rows=least, release=partial(release_graphs, self.model)
        )


class SignStepPurifier(DescentPurifier):
    """`steps` sign steps of `step_size` from `start(x)`, inside the Linf ball of radius `eps` around x and in `bounds`.

    model: any classifier from a batch to logits; it needs no auxiliary task.
    """

    def __init__(self, model: nn.Module, *, eps: float, step_size: float, steps: int, bounds: Bounds = UNIT) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"got {validate.describe(model)} as the classifier, expected an nn.Module from images to logits."
            )
        validate.positive("step_size", step_size)
        validate.radius(step_size, bounds=bounds, name="step_size")
        validate.at_least("steps (K)", steps, 1)
        validate.non_negative("eps", eps)
        self.model, self.eps, self.step_size, self.steps, self.bounds = model, eps, step_size, steps, bounds
        self._logits_checked = False

    @abstractmethod
    def criterion(self, x: Float[Tensor, "batch *shape"]) -> LogitLoss:
        """Return the loss of the logits that purification of `x` descends."""

    def start(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the first point of the descent."""
        return x

    def __call__(self, x: Float[Tensor, "batch *shape"], *, progress: bool = True) -> Purified:
        """Return the purified batch, with the losses at `x` and at the purified images. Inputs are not modified.

        progress: show a bar in terminals and notebooks if it takes more than two seconds.
        """
        with purifying(progress):
            image, before, after = self._in_parts(self._purified, x)
        eps = x.new_full((len(x),), self.eps)
        return Purified(x=image, eps=eps, loss_before=before, loss_after=after, before=x.detach())

    def route(
        self, x: Float[Tensor, "batch *shape"]
    ) -> tuple[Float[Tensor, "steps1 batch *shape"], Float[Tensor, "batch"]]:
        """Return the points of `path` and the radius of every sample."""
        (points,) = self._in_parts(self._follow, x)
        return points.transpose(0, 1).contiguous(), x.new_full((len(x),), self.eps)

    def loss(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """Return the loss that purification of `x` descends, at `x`, with the model in evaluation mode."""
        with frozen(self.model):
            return self._loss(x)(x)

    def _loss(self, x: Tensor) -> Loss:
        """Return the loss of points that purification of `x` descends."""
        criterion = self.criterion(x)
        return lambda point: criterion(self.model(point))

    def _in_parts(self, function: TensorFunction, x: Tensor) -> tuple[Tensor, ...]:
        """Return `function(x)` for checked inputs, in parts."""
        validate.inputs(x, self.model, self.bounds)
        with isolated(self.model), torch.inference_mode(False), torch.no_grad():
            x = x.detach().clone()  # autograd cannot record tensors made in inference mode
            if not self._logits_checked:
                validate.logits(self.model(x[:8]), len(x[:8]))
                self._logits_checked = True
            return self._replayed(function, x, max_rows=MAX_IMAGES_AT_ONCE.get(x.device.type))

    def _purified(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return images, and losses before and after, all [batch, ...]; nothing here waits for the host."""
        loss = self._loss(x)
        before = loss(x)
        image = projected_gradient(loss, x, **self._steps(x))
        return image, before, loss(image)

    def _follow(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return all points, [batch, K + 1, ...]."""
        return (torch.stack(iterates(self._loss(x), x, **self._steps(x)), 1),)

    def _steps(self, x: Tensor) -> dict[str, Any]:
        """Return the settings of the descent from `start(x)`."""
        return {
            "ball": Linf(self.eps),
            "step_size": -self.step_size,
            "steps": self.steps,
            "start": self.start(x),
            "bounds": self.bounds,
        }
