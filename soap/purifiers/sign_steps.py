"""What purifiers share that walk by sign steps on a loss of the classifier's own logits, at one radius for all."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from soap import validate
from soap._runtime.cuda_graphs import TensorFunction, min_rows_for_determinism, release_graphs, replayed
from soap._runtime.isolation import frozen, isolated
from soap._runtime.splitting import in_chunks
from soap.balls import Linf
from soap.descent import UNIT, Bounds, advance, slope
from soap.errors import InputError
from soap.purifiers.soap import Purified
from soap.shapes import Float, Tensor

SIDE_BY_SIDE = {"cpu": 128, "cuda": 1024}
"""Images walked at once at most: on a CPU more are slower, on a GPU hardly faster; what a replay is padded to."""

Criterion = Callable[[Tensor], Tensor]
"""Logits [batch, classes] -> what the steps descend, [batch]."""


class SignWalk(ABC):
    """`steps` sign steps of `step_size` from `start(x)`, inside the Linf ball of radius `eps` around x and in `bounds`.

    model: any classifier that maps a batch to logits; it needs no auxiliary task.
    """

    def __init__(self, model: nn.Module, *, eps: float, step_size: float, steps: int, bounds: Bounds = UNIT) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"got {validate.describe(model)} as the classifier, want an nn.Module from x to logits.")
        validate.positive("step_size", step_size)
        validate.at_least("steps (K)", steps, 1)
        validate.non_negative("eps", eps)
        self.model, self.eps, self.step_size, self.steps, self.bounds = model, eps, step_size, steps, bounds
        self._looked = False

    @abstractmethod
    def criterion(self, x: Float[Tensor, "batch *shape"]) -> Criterion:
        """What a walk that sets out for `x` descends."""

    def start(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Where the walk begins."""
        return x

    def __call__(self, x: Float[Tensor, "batch *shape"]) -> Purified:
        """Purify a batch; inputs are not changed. The losses are those at `x` and at the purified image."""
        image, before, after = self._in_parts(self._walk, x)
        return Purified(x=image, eps=x.new_full((len(x),), self.eps), loss_before=before, loss_after=after)

    def path(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "steps1 batch *shape"]:
        """The start and every point after it; the last are the purified images."""
        return self.route(x)[0]

    def route(
        self, x: Float[Tensor, "batch *shape"]
    ) -> tuple[Float[Tensor, "steps1 batch *shape"], Float[Tensor, "batch"]]:
        """The points of `path`, and the radius of every row."""
        (points,) = self._in_parts(self._follow, x)
        return points.transpose(0, 1).contiguous(), x.new_full((len(x),), self.eps)

    @property
    def recorded_by(self) -> nn.Module:
        """The network whose promise to be `recordable` holds for `loss` as well: nothing here waits for the host."""
        return self.model

    def loss(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """What a walk from `x` descends there, by the model in evaluation mode."""
        with frozen(self.model):
            return self._loss(self.criterion(x), x)

    def _loss(self, criterion: Criterion, x: Tensor) -> Tensor:
        return criterion(self.model(x))

    def _in_parts(self, walk: TensorFunction, x: Tensor) -> tuple[Tensor, ...]:
        """`walk(x)` on checked inputs, replayed where that is possible, over as many rows at once as pay."""
        validate.inputs(x, self.model, self.bounds)
        with isolated(self.model), torch.inference_mode(False), torch.no_grad():
            x = x.detach().clone()  # autograd cannot record tensors made under inference_mode
            if not self._looked:
                validate.logits(self.model(x[:8]), len(x[:8]))
                self._looked = True
            replay = partial(replayed, self.model, (repr(self), self.bounds, walk.__name__), walk)
            most, least = SIDE_BY_SIDE.get(x.device.type), min_rows_for_determinism(self.model, x)
            return in_chunks(replay, x, max_rows=most, min_rows=least, release=partial(release_graphs, self.model))

    def _walk(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images, losses before and after, all [batch, ...]; nothing in it waits for the host."""
        loss = partial(self._loss, self.criterion(x))
        before, point = loss(x), self.start(x)
        for _ in range(self.steps):
            point = self._step(loss, point, x)
        return point, before, loss(point)

    def _follow(self, x: Tensor) -> tuple[Tensor, ...]:
        """All points, [batch, K + 1, ...]."""
        loss = partial(self._loss, self.criterion(x))
        points = [self.start(x)]
        for _ in range(self.steps):
            points.append(self._step(loss, points[-1], x))
        return (torch.stack(points, 1),)

    def _step(self, loss: Callable[[Tensor], Tensor], point: Tensor, x: Tensor) -> Tensor:
        _, gradient = slope(loss, point)
        ball = Linf(self.eps)
        return advance(point, gradient, origin=x, ball=ball, step_size=-self.step_size, bounds=self.bounds)
