"""DeepFool (Moosavi-Dezfooli et al. 2016, Algorithm 2): step to the nearest boundary of the linearised model."""

from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Model
from soap.attacks.min_norm import MinimalL2, per_row
from soap.balls import row_norms
from soap.errors import InputError
from soap.shapes import Float, Int, Tensor

PAST = 1e-4
"""Every step goes this far (L2) past the linearised boundary: on it, steps would shrink to nothing."""


@dataclass(frozen=True, kw_only=True)
class DeepFool(MinimalL2):
    """At most `steps` steps, summed and stretched by 1 + `overshoot`, clipped to [0, 1] each time.

    `candidates` counts the likeliest classes of the image, its own included, whose boundaries are tried; None
    tries all. A row leaves the batch at the first step that fools, and keeps its last point where none does.
    """

    steps: int = 50
    overshoot: float = 0.02
    candidates: int | None = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least("steps", self.steps, 1)
        validate.non_negative("overshoot", self.overshoot)
        if self.candidates is not None:
            validate.at_least("candidates", self.candidates, 2)

    def search(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Linearise, step, and let the fooled rows go."""
        others = self._likeliest_others(model, x, y)
        found, total = x.clone(), torch.zeros_like(x)
        rows = torch.arange(len(x), device=x.device)
        for _ in range(self.steps):
            total[rows] += nearest_boundary(model, found[rows], y[rows], others[rows])
            found[rows] = (x[rows] + (1 + self.overshoot) * total[rows]).clamp(0, 1)
            # A forward pass of its own: cheaper than carrying fooled rows through the backward passes. Counting the
            # rows that stand is the one wait for the device in a step.
            rows = rows[model(found[rows]).argmax(1) == y[rows]]
            if len(rows) == 0:
                break
        return found

    def _likeliest_others(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            logits = model(x)
        classes = logits.shape[1]
        count = classes if self.candidates is None else min(self.candidates, classes)
        likeliest: Tensor = logits.scatter(1, y[:, None], -torch.inf).topk(count - 1).indices
        return likeliest


def nearest_boundary(
    model: Model,
    x: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
    others: Int[Tensor, "batch k"],
) -> Float[Tensor, "batch *shape"]:
    """The shortest step of every row to where a class of `others` overtakes `y`, by linearisation at `x`.

    One forward pass and k backward passes over the same graph.
    """
    with torch.inference_mode(False), torch.enable_grad():
        point = x.clone().requires_grad_()  # clone: autograd cannot record a tensor made under inference_mode
        logits = model(point)
        gaps = logits.gather(1, others) - logits.gather(1, y[:, None])  # f_k - f_y, negative before the boundary
        step, shortest = torch.zeros_like(x), x.new_full((len(x),), torch.inf)
        for k in range(others.shape[1]):
            w = _gradient(gaps[:, k], point)
            length = row_norms(w)
            distance = gaps[:, k].detach().abs() / length  # infinite without a gradient: no boundary to step to
            nearer = distance < shortest
            scale = per_row((distance + PAST) / length, x)
            step = torch.where(per_row(nearer, x), scale * w, step)
            shortest = torch.where(nearer, distance, shortest)
    return step


def _gradient(values: Tensor, point: Tensor) -> Tensor:
    """d values / d point, row by row; the graph is kept for the next class."""
    gradient = None
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), point, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise InputError(
            "the model's output carries no gradient to its input: it detaches it or runs under no_grad; "
            "want a model that is differentiable in its input."
        )
    return gradient
