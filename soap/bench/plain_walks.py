"""Algorithms 1 and 2 as the paper prints them: one radius after another, one step after another.

Ordinary PyTorch, as a careful reader of the paper would write it: `loss.backward()`, which also fills in gradients of
the parameters, on whole batches, without waiting for the host. This is what ours is measured against.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from soap.auxiliary import JointModel
from soap.shapes import Float, Int, Tensor

TIE = 1e-5
"""Losses this close (relative) are ties, which the smallest radius wins: larger ones that never bind end there too."""


def purify(
    model: JointModel, x: Float[Tensor, "batch *shape"], eps: float, *, gamma: float, T: int
) -> Float[Tensor, "batch *shape"]:
    """Algorithm 2: delta <- delta - gamma * sign(gradient), clipped to [-eps, eps] and x + delta to [0, 1]; T times."""
    delta = torch.zeros_like(x)
    for _ in range(T):
        x_pfy = (x + delta).requires_grad_()
        loss = model.auxiliary.loss(model, x_pfy).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        delta = (delta - gamma * gradient(x_pfy).sign()).clamp(-eps, eps)
        delta = (x + delta).clamp(0, 1) - x
    return x + delta


def purify_min_aux(
    model: JointModel, x: Float[Tensor, "batch *shape"], grid: Sequence[float], *, gamma: float, T: int
) -> tuple[Float[Tensor, "batch *shape"], Float[Tensor, "batch"]]:
    """Algorithm 2 for every radius of the grid, then for each example the smallest of least auxiliary loss."""
    ends, losses = [], []
    for eps in sorted(grid):
        ends.append(purify(model, x, eps, gamma=gamma, T=T))
        with torch.no_grad():
            losses.append(model.auxiliary.loss(model, ends[-1]))
    model.zero_grad()
    table = torch.stack(losses)
    least = table.amin(0)
    choice = (table <= least + TIE * least.abs()).byte().argmax(0)
    rows = torch.arange(len(x), device=x.device)
    return torch.stack(ends)[choice, rows], torch.tensor(sorted(grid), device=x.device, dtype=x.dtype)[choice]


def pgd(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"], *, eps: float, gamma: float, T: int
) -> Float[Tensor, "batch *shape"]:
    """Algorithm 1 from delta = 0: delta <- delta + gamma * sign(gradient), clipped like above; T times."""
    delta = torch.zeros_like(x)
    for _ in range(T):
        x_adv = (x + delta).requires_grad_()
        loss = F.cross_entropy(model(x_adv), y, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        delta = (delta + gamma * gradient(x_adv).sign()).clamp(-eps, eps)
        delta = (x + delta).clamp(0, 1) - x
    model.zero_grad()
    return x + delta


def gradient(x: Tensor) -> Tensor:
    """What `backward` left at `x`."""
    if x.grad is None:
        raise RuntimeError("backward() left no gradient at the input")
    return x.grad
