"""The SOAP purifier: Algorithm 2 of the paper, with its choice of radius.

Projected gradient descent on the auxiliary loss with respect to the input, inside an Linf ball of radius eps
around it and inside [0, 1]. The radius is fixed, or chosen for every example from a grid: the smallest that
minimises the auxiliary loss ("min-aux"), or the smallest that is classified rightly ("oracle", the paper's
upper bound, which needs the label). The authors' code compares mean losses instead, so that one radius serves a whole
batch ("min-aux-batch"): kept to reproduce printed figures, for an image's answer then depends on its batch-mates.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime import devices
from soap._runtime.cuda_graphs import Function, forget, least_rows, replayed
from soap._runtime.isolation import frozen, isolated
from soap._runtime.splitting import by_rows, bytes_kept
from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import UNIT, Bounds, advance, slope
from soap.errors import InputError
from soap.purifiers.grid import GridWalk, walk_grid, widest
from soap.shapes import Float, Int, Tensor
from soap.specs import DefenceSpec, Spec, call_text

SIDE_BY_SIDE = {"cpu": 160, "cuda": 1280}
"""Points walked at once at most. More are slower on a CPU, which fetches their memory anew each time; on a GPU they are
hardly faster, and make it choose other convolutions, whose rounding a sign step turns into other pixels."""

CHOICES = ("min-aux", "min-aux-batch", "oracle")

TIE = 1e-5
"""Losses this close (relative) are ties: radii that never bind end at the same point but for rounding."""


@dataclass(frozen=True, kw_only=True)
class Purified:
    """One row an image: the purified image, the radius that was used, the auxiliary loss before and after."""

    x: Float[Tensor, "batch *shape"]
    eps: Float[Tensor, "batch"]
    loss_before: Float[Tensor, "batch"]
    loss_after: Float[Tensor, "batch"]


def soap_spec(
    eps: float | str, grid: tuple[float, ...], step_size: float, steps: int, *, precision: str = "fp32", **task: Any
) -> DefenceSpec:
    """The specification of a SOAP purifier, as result rows store it; task: settings of the auxiliary task."""
    settings: dict[str, Any] = {"eps": eps}
    if isinstance(eps, str):
        settings["grid"] = list(grid)
    settings |= {"step_size": step_size, "steps": steps}
    if task:
        settings["task"] = task
    if precision != "fp32":
        settings["precision"] = precision
    return DefenceSpec(name="SOAP", settings=settings, eps=eps)


class SOAP:
    """`purify(x)` lowers the auxiliary loss of `model` at `x`; settings default to the model's own.

    eps: a radius, or "min-aux" or "oracle" to choose one from `grid` for every example; "min-aux-batch" chooses one for
    all of a batch.
    step_size, steps: gamma and T. One step of at least the largest eps is the single-step purifier.
    precision: "fp32", or "bf16" on a GPU: faster, and some images end elsewhere.
    max_memory: bytes that the working set may take; larger batches are split, with the same result. Where memory runs
    out all the same, the part is halved and the work goes on.
    """

    def __init__(
        self,
        model: JointModel,
        eps: float | str = "min-aux",
        *,
        step_size: float | None = None,
        steps: int | None = None,
        grid: tuple[float, ...] | None = None,
        bounds: Bounds = UNIT,
        precision: str = "fp32",
        max_memory: int | None = None,
    ) -> None:
        if getattr(model, "auxiliary", None) is None:
            raise InputError(
                f"got a {type(model).__name__}, want a network with an auxiliary task: one of the zoo, or what "
                "soap.auxiliary.wrap makes of a classifier; Hedge and AntiAdversary take any classifier."
            )
        self.model = model
        self.precision = precision
        self.max_memory = max_memory
        self.task = model.auxiliary
        self.eps = eps
        self.bounds = bounds
        if isinstance(eps, str):
            validate.choice("eps", eps, CHOICES)
            if eps == "min-aux-batch" and max_memory is not None:
                raise InputError("eps='min-aux-batch' looks at a whole batch at once; leave out max_memory.")
        else:
            grid = (eps,)
        validate.choice("precision", precision, devices.PRECISIONS)
        own = model.purification
        if own is not None:
            step_size = own.step_size if step_size is None else step_size
            steps = own.steps if steps is None else steps
            grid = own.grid if grid is None else grid
        if step_size is None or steps is None or grid is None:
            raise InputError(f"{model.name} carries no purifier settings; give step_size, steps and grid (or eps).")
        validate.positive("step_size", step_size)
        validate.at_least("steps (T)", steps, 1)
        if not grid:
            raise InputError("the eps grid is empty, want at least one radius, e.g. grid=(0.0, 0.1, 0.2).")
        for radius in grid:
            validate.non_negative("eps", radius)
        self.step_size, self.steps, self.grid = step_size, steps, tuple(sorted(set(grid)))

    def spec(self) -> Spec:
        """The settings, as result rows store them."""
        settings = self.task.settings()
        return soap_spec(self.eps, self.grid, self.step_size, self.steps, precision=self.precision, **settings)

    def __repr__(self) -> str:
        return call_text(self.spec())

    def __call__(self, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"] | None = None) -> Purified:
        """Purify a batch. `y` is for eps="oracle" alone; inputs are not changed."""
        validate.inputs(x, self.model, self.bounds)
        if self.eps == "oracle" and y is None:
            raise InputError("eps='oracle' needs the labels y: it is the paper's upper bound, not a defence.")
        if self.eps != "oracle" and y is not None:
            raise InputError(f"eps={self.eps!r} takes no labels; only eps='oracle' does.")
        if y is not None:
            validate.labels(y, x, self.model.classes)
        with isolated(self.model):
            return self._purify(x.detach(), y)

    def path(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "steps1 batch *shape"]:
        """The iterates x_0 = x, x_1 ... x_T of every row at the radius chosen for it; the last is `purifier(x).x`.

        They are the points that the choice of a radius visits anyway, so they cost what purifying costs.
        """
        return self.route(x)[0]

    def route(
        self, x: Float[Tensor, "batch *shape"]
    ) -> tuple[Float[Tensor, "steps1 batch *shape"], Float[Tensor, "batch"]]:
        """The iterates of `path`, and the radius of every row."""
        if self.eps == "oracle":
            raise InputError(
                "eps='oracle' chooses by the label, so it is no defence and has no path; use eps='min-aux' or a radius."
            )
        validate.inputs(x, self.model, self.bounds)
        with isolated(self.model):
            path, eps = self._in_parts(self._follow, x.detach())
        return path.transpose(0, 1).contiguous(), eps

    @property
    def recorded_by(self) -> nn.Module:
        """The network whose promise to be `recordable` holds for `loss` as well: nothing here waits for the host."""
        return self.model

    def loss(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """What purification descends, by the model in evaluation mode; ask for gradients with `torch.autograd.grad`."""
        with frozen(self.model):
            return self._loss(x)

    def trajectory(
        self, x: Float[Tensor, "batch *shape"], eps: Float[Tensor, "batch"]
    ) -> Float[Tensor, "steps1 batch *shape"]:
        """The iterates x_0 = x, x_1 ... x_T of every row at its own radius, one gradient a step."""
        validate.inputs(x, self.model, self.bounds)
        points = [x.detach()]
        with isolated(self.model):
            for _ in range(self.steps):
                _, gradient = slope(self._loss, points[-1])
                points.append(
                    advance(
                        points[-1],
                        gradient,
                        origin=points[0],
                        ball=Linf(eps),
                        step_size=-self.step_size,
                        bounds=self.bounds,
                    )
                )
        return torch.stack(points)

    def _loss(self, x: Tensor) -> Tensor:
        with devices.autocast(x.device, self.precision):
            return self.task.loss(self.model, x).to(x.dtype)

    def _purify(self, x: Tensor, y: Tensor | None) -> Purified:
        parts = self._in_parts(self._walk, *((x,) if y is None else (x, y)))
        return Purified(**dict(zip(("x", "eps", "loss_before", "loss_after"), parts, strict=True)))

    def _in_parts(self, walk: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`walk(*inputs)`, replayed where that is possible, over as many rows at once as pay."""
        if self.eps == "min-aux-batch":
            return walk(*inputs)
        replay = partial(replayed, self.model, (repr(self), self.bounds, walk.__name__), walk)
        most, least = self._rows_at_once(inputs[0]), least_rows(self.model, *inputs)
        return by_rows(replay, *inputs, most=most, least=least, free=partial(forget, self.model))

    def _walk(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, ...]:
        """Images, radii, losses before and after, all [batch, ...]."""
        walk, choice, rows = self._choose(x, y)
        return walk.points[choice, rows], walk.radii[choice], walk.loss_before, walk.losses[choice, rows]

    def _follow(self, x: Tensor) -> tuple[Tensor, ...]:
        """Iterates [batch, T + 1, ...] and radii [batch]."""
        walk, choice, rows = self._choose(x)
        points = [torch.stack(points)[choice, rows] for points in zip(*walk.trails, strict=True)]
        return torch.stack(points, 1), walk.radii[choice]

    def _choose(self, x: Tensor, y: Tensor | None = None) -> tuple[GridWalk, Tensor, Tensor]:
        """The walk over the grid, and for every row the place of its radius there and its own number."""
        walk = walk_grid(self._loss, x, self.grid, step_size=self.step_size, steps=self.steps, bounds=self.bounds)
        losses = walk.losses
        if self.eps == "min-aux-batch":
            losses = losses.mean(1, keepdim=True).expand_as(losses)
        choice = _first(least(losses))
        if y is not None:
            with torch.no_grad():
                labels = self.model(walk.points.flatten(0, 1)).argmax(1).reshape(walk.losses.shape)
            right = labels == y
            choice = torch.where(right.any(0), _first(right), choice)
        return walk, choice, torch.arange(len(x), device=x.device)

    def _rows_at_once(self, x: Tensor) -> int:
        """How many images to take at once: no more than pays, and than keep the working set within `max_memory`.

        An image on each of its paths takes what autograd keeps of it and about as much again on the way back; the
        grid's end points and their copies come on top.
        """
        paths = widest(self.grid, step_size=self.step_size, steps=self.steps)
        rows = max(1, SIDE_BY_SIDE.get(x.device.type, len(x) * paths) // paths)
        if self.max_memory is not None:
            need = 2 * bytes_kept(self._loss, x[:1]) * paths + 8 * len(self.grid) * x[0].numel() * x.element_size()
            if self.max_memory < need:
                raise InputError(f"max_memory is {self.max_memory:,} bytes, but one image needs about {need:,}.")
            rows = min(rows, self.max_memory // need)
        return 1 << rows.bit_length() - 1  # a power of two: what a replay is padded to


def least(losses: Float[Tensor, "k n"]) -> Tensor:
    """Which losses are, up to a tie, the least of their column; a loss may be negative."""
    lowest = losses.amin(0)
    return losses <= lowest + TIE * lowest.abs()


def _first(holds: Tensor) -> Tensor:
    """For every column of [k, batch], the first row that holds: the smallest radius, as radii ascend."""
    return holds.to(torch.uint8).argmax(0)
