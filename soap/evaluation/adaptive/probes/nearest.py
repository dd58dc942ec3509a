"""Which image a point belongs to: attacks drop and reorder rows, so a row's number says nothing."""

from dataclasses import dataclass

import torch

from soap.shapes import Float, Int, Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearest:
    """Finds, for points inside the balls around `x`, their centre: the nearest in the ball's own norm.

    Right wherever the balls do not overlap, that is for images farther apart than twice the radius.
    """

    x: Float[Tensor, "n *shape"]
    norm: str

    def __call__(self, points: Float[Tensor, "batch *shape"]) -> Int[Tensor, "batch"]:
        """The number of the nearest image of each."""
        p = torch.inf if self.norm == "linf" else 2.0
        with torch.no_grad():
            return torch.cdist(points.detach().flatten(1), self.x.flatten(1).to(points.dtype), p=p).argmin(1)
