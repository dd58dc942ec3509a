"""DeepFool (Moosavi-Dezfooli et al. 2016, Algorithm 2): step to the nearest boundary of the linearised model."""

from dataclasses import dataclass

import torch

from soap import validate
from soap.attacks.attack import Model, in_parts, logits_of
from soap.attacks.min_norm import MinimalL2
from soap.balls import per_sample, row_norms
from soap.descent import gradient_of
from soap.shapes import Float, Int, Tensor

BOUNDARY_MARGIN = 1e-4
"""L2 distance that every step goes past the linearised boundary; steps that end on it would shrink to zero."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DeepFool(MinimalL2):
    """At most `steps` steps, summed and multiplied by 1 + `overshoot`, clipped to `bounds` each time.

    `candidates` is the number of most probable classes, the image's own included, whose boundaries are tried; None for
    all. A sample leaves the batch at its first success, and keeps its last point if there is none. If targeted, each
    step goes to the boundary between the predicted class and `y`.
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
        """Linearise, step, and remove the samples with success."""
        logits = logits_of(model, x)
        step = lambda x, y, others: (nearest_boundary(model, x, y, others),)  # noqa: E731
        source, others = (logits.argmax(1), y[:, None]) if self.targeted else (y, self._probable_others(logits, y))
        found, total = x.clone(), torch.zeros_like(x)
        rows = torch.arange(len(x), device=x.device)
        for _ in range(self.steps):
            total[rows] += in_parts(step, found[rows], source[rows], others[rows])[0]
            found[rows] = (x[rows] + (1 + self.overshoot) * total[rows]).clamp(*self.bounds)
            # A separate forward pass is cheaper than backward passes for samples with success. Selecting the other
            # samples is the only wait for the device in a step.
            logits = logits_of(model, found[rows])
            if self.targeted:
                source[rows] = logits.argmax(1)
            rows = rows[~self.succeeds(logits, y[rows])]
            if len(rows) == 0:
                break
        return found

    def _probable_others(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the most probable classes other than `y`, [batch, k]."""
        classes = logits.shape[1]
        count = classes if self.candidates is None else min(self.candidates, classes)
        return logits.scatter(1, y[:, None], -torch.inf).topk(count - 1).indices


def nearest_boundary(
    model: Model,
    x: Float[Tensor, "batch *shape"],
    y: Int[Tensor, "batch"],
    others: Int[Tensor, "batch k"],
) -> Float[Tensor, "batch *shape"]:
    """Return the shortest step of every sample to a point where a class of `others` exceeds `y`, linearised at `x`.

    One forward pass, and k backward passes over the same graph.
    """
    with torch.inference_mode(False), torch.enable_grad():
        point = x.clone().requires_grad_()  # clone: autograd cannot record a tensor made in inference mode
        logits = model(point)
        gaps = logits.gather(1, others) - logits.gather(1, y[:, None])  # f_k - f_y, negative before the boundary
        step, shortest = torch.zeros_like(x), x.new_full((len(x),), torch.inf)
        for k in range(others.shape[1]):
            w = gradient_of(gaps[:, k], point, torch.ones_like(gaps[:, k]), retain_graph=True)
            length = row_norms(w)
            distance = gaps[:, k].detach().abs() / length  # infinite if the gradient is zero: no step
            nearer = distance < shortest
            scale = per_sample((distance + BOUNDARY_MARGIN) / length, x)
            step = torch.where(per_sample(nearer, x), scale * w, step)
            shortest = torch.where(nearer, distance, shortest)
    return step
