"""The SOAP purifier (Algorithm 2 of the paper) and its selection of the radius.

Projected gradient descent on the auxiliary loss with respect to the input, inside an Linf ball of radius eps around it
and inside [0, 1]. The radius is fixed, or selected for every sample from a grid:

- "min-aux": the smallest radius that minimises the auxiliary loss.
- "oracle": the smallest radius at which the sample is classified correctly; the paper's upper bound, needs the label.
- "min-aux-batch": one radius for the whole batch, by the mean loss, as in the authors' code. A result then depends on
  the other samples of the batch; use it only to reproduce printed numbers.
"""

from typing import Any

import torch

from soap import validate
from soap._runtime import devices
from soap._runtime.cuda_graphs import TensorFunction
from soap._runtime.isolation import frozen, isolated
from soap._runtime.progress import purifying
from soap._runtime.splitting import autograd_bytes
from soap.auxiliary import JointModel
from soap.balls import Linf
from soap.descent import UNIT, Bounds, iterates
from soap.errors import InputError
from soap.purifiers.grid import GridDescent, descend_grid, max_paths
from soap.purifiers.purifier import Purified
from soap.purifiers.sign_steps import DescentPurifier
from soap.shapes import Float, Int, Tensor
from soap.specs import DefenceSpec, Spec

MAX_POINTS_AT_ONCE = {"cpu": 160, "cuda": 1280}
"""Images times paths in one pass. More are slower on a CPU (cache misses) and hardly faster on a GPU, where a larger
batch also selects other convolution algorithms, whose rounding changes pixels through the sign steps."""

CHOICES = ("min-aux", "min-aux-batch", "oracle")

LOSS_TOLERANCE = 1e-5
"""Relative. Losses this close count as equal: radii that never clip end at the same point up to rounding."""


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


class SOAP(DescentPurifier):
    """`SOAP(model)(x)` lowers the auxiliary loss of `model` at `x`; settings default to the model's own.

    eps: a radius, or "min-aux", "min-aux-batch" or "oracle" to select one from `grid`.
    step_size, steps: gamma and T. One step at least as long as the largest eps is the single-step purifier.
    precision: "fp32", or "bf16" on a GPU, which is faster and changes some purified images.
    max_memory: limit in bytes for the working set. Larger batches are split, with the same result. If memory runs out
    in spite of it, the part is halved and repeated.
    """

    model: JointModel

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
                f"got a {type(model).__name__}, expected a network with an auxiliary task: a model of the zoo, or the "
                "result of soap.auxiliary.wrap. Hedge and AntiAdversary accept any classifier."
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
                raise InputError("eps='min-aux-batch' needs the whole batch at once; remove max_memory.")
        else:
            validate.radius(eps, bounds=bounds)
            grid = (eps,)
        validate.choice("precision", precision, devices.PRECISIONS)
        own = model.purification
        if own is not None:
            step_size = own.step_size if step_size is None else step_size
            steps = own.steps if steps is None else steps
            grid = own.grid if grid is None else grid
        if step_size is None or steps is None or grid is None:
            raise InputError(f"{model.name} has no purifier settings; give step_size, steps and grid (or eps).")
        validate.positive("step_size", step_size)
        validate.at_least("steps (T)", steps, 1)
        if not grid:
            raise InputError("the eps grid is empty, expected at least one radius, e.g. grid=(0.0, 0.1, 0.2).")
        for radius in grid:
            validate.non_negative("eps", radius)
        self.step_size, self.steps, self.grid = step_size, steps, tuple(sorted(set(grid)))

    def spec(self) -> Spec:
        """The settings, as result rows store them."""
        settings = self.task.settings()
        return soap_spec(self.eps, self.grid, self.step_size, self.steps, precision=self.precision, **settings)

    def __call__(
        self, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"] | None = None, *, progress: bool = True
    ) -> Purified:
        """Return the purified batch. Only eps="oracle" takes the labels `y`. Inputs are not modified.

        progress: show a bar in terminals and notebooks if it takes more than two seconds.
        """
        validate.inputs(x, self.model, self.bounds)
        if self.eps == "oracle" and y is None:
            raise InputError("eps='oracle' needs the labels y: it is the paper's upper bound, not a defence.")
        if self.eps != "oracle" and y is not None:
            raise InputError(f"eps={self.eps!r} takes no labels y; only eps='oracle' does.")
        if y is not None:
            validate.labels(y, x, self.model.classes)
        with isolated(self.model), purifying(progress):
            parts = self._in_parts(self._purified, *((x.detach(),) if y is None else (x.detach(), y)))
        return Purified(**dict(zip(("x", "eps", "loss_before", "loss_after"), parts, strict=True)), before=x.detach())

    def route(
        self, x: Float[Tensor, "batch *shape"]
    ) -> tuple[Float[Tensor, "steps1 batch *shape"], Float[Tensor, "batch"]]:
        """Return the iterates x_0 = x, x_1 ... x_T of every sample at its selected radius, and that radius."""
        if self.eps == "oracle":
            raise InputError(
                "eps='oracle' needs the labels, so it is no defence and has no path; use eps='min-aux' or a radius."
            )
        validate.inputs(x, self.model, self.bounds)
        with isolated(self.model):
            path, eps = self._in_parts(self._follow, x.detach())
        return path.transpose(0, 1).contiguous(), eps

    def loss(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """Return the loss that purification descends, with the model in evaluation mode."""
        with frozen(self.model):
            return self._loss(x)

    def trajectory(
        self, x: Float[Tensor, "batch *shape"], eps: Float[Tensor, "batch"]
    ) -> Float[Tensor, "steps1 batch *shape"]:
        """Return the iterates x_0 = x, x_1 ... x_T of every sample at a given radius, one gradient per step."""
        validate.inputs(x, self.model, self.bounds)
        with isolated(self.model):
            points = iterates(
                self._loss,
                x.detach(),
                ball=Linf(eps),
                step_size=-self.step_size,
                steps=self.steps,
                bounds=self.bounds,
            )
        return torch.stack(points)

    def _loss(self, x: Tensor) -> Tensor:
        with devices.autocast(x.device, self.precision):
            return self.task.loss(self.model, x).to(x.dtype)

    def _in_parts(self, function: TensorFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return `function(*inputs)` in parts of `_rows_at_once` samples."""
        if self.eps == "min-aux-batch":
            return function(*inputs)
        return self._replayed(function, *inputs, max_rows=self._rows_at_once(inputs[0]))

    def _purified(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return images, radii, and losses before and after, all [batch, ...]."""
        grid, choice, rows = self._select(x, y)
        return grid.points[choice, rows], grid.radii[choice], grid.loss_before, grid.losses[choice, rows]

    def _follow(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return iterates [batch, T + 1, ...] and radii [batch]."""
        grid, choice, rows = self._select(x)
        points = [torch.stack(points)[choice, rows] for points in zip(*grid.iterates, strict=True)]
        return torch.stack(points, 1), grid.radii[choice]

    def _select(self, x: Tensor, y: Tensor | None = None) -> tuple[GridDescent, Tensor, Tensor]:
        """Return the descent for the whole grid, the index of every sample's radius in it, and 0 ... batch - 1."""
        grid = descend_grid(self._loss, x, self.grid, step_size=self.step_size, steps=self.steps, bounds=self.bounds)
        losses = grid.losses
        if self.eps == "min-aux-batch":
            losses = losses.mean(1, keepdim=True).expand_as(losses)
        choice = _first(is_minimal(losses))
        if y is not None:
            with torch.no_grad():
                labels = self.model(grid.points.flatten(0, 1)).argmax(1).reshape(grid.losses.shape)
            correct = labels == y
            choice = torch.where(correct.any(0), _first(correct), choice)
        return grid, choice, torch.arange(len(x), device=x.device)

    def _rows_at_once(self, x: Tensor) -> int:
        """Return the number of images to purify at once, by `MAX_POINTS_AT_ONCE` and `max_memory`.

        Each path of an image needs the tensors that autograd keeps and about as much again in the backward pass, plus
        the end points of the grid and their copies.
        """
        paths = max_paths(self.grid, step_size=self.step_size, steps=self.steps)
        rows = max(1, MAX_POINTS_AT_ONCE.get(x.device.type, len(x) * paths) // paths)
        if self.max_memory is not None:
            need = 2 * autograd_bytes(self._loss, x[:1]) * paths + 8 * len(self.grid) * x[0].numel() * x.element_size()
            if self.max_memory < need:
                raise InputError(f"max_memory is {self.max_memory:,} bytes, but one image needs about {need:,} bytes.")
            rows = min(rows, self.max_memory // need)
        return 1 << rows.bit_length() - 1  # replays are padded to powers of two


def is_minimal(losses: Float[Tensor, "k n"]) -> Tensor:
    """Return which losses are minimal in their column, up to `LOSS_TOLERANCE`; losses may be negative."""
    lowest = losses.amin(0)
    return losses <= lowest + LOSS_TOLERANCE * lowest.abs()


def _first(holds: Tensor) -> Tensor:
    """Return, for every column of [k, batch], the first row that holds: the smallest radius, as radii ascend."""
    return holds.to(torch.uint8).argmax(0)
