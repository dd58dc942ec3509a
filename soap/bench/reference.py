"""Plain reference implementations: the paper's two algorithms as usually written in PyTorch.

They run one radius and one step after another on whole batches, with `loss.backward()`, which also computes gradients
of the parameters. Our implementations are measured against these.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from soap.auxiliary import JointModel
from soap.shapes import Float, Int, Tensor

LOSS_TIE = 1e-5
"""Losses this close (relative) are equal; the smallest radius is chosen. Radii that never bind give the same point."""


def purify(
    model: JointModel, x: Float[Tensor, "batch *shape"], eps: float, *, gamma: float, T: int
) -> Float[Tensor, "batch *shape"]:
    """Algorithm 2: `sign_steps` down the auxiliary loss."""
    return sign_steps(lambda x_pfy: model.auxiliary.loss(model, x_pfy).sum(), x, eps=eps, step=-gamma, T=T)


def purify_min_aux(
    model: JointModel, x: Float[Tensor, "batch *shape"], grid: Sequence[float], *, gamma: float, T: int
) -> tuple[Float[Tensor, "batch *shape"], Float[Tensor, "batch"]]:
    """Algorithm 2 for each radius of the grid, then for each example the smallest radius with the least loss."""
    ends, losses = [], []
    for eps in sorted(grid):
        ends.append(purify(model, x, eps, gamma=gamma, T=T))
        with torch.no_grad():
            losses.append(model.auxiliary.loss(model, ends[-1]))
    model.zero_grad()
    table = torch.stack(losses)
    least = table.amin(0)
    choice = (table <= least + LOSS_TIE * least.abs()).byte().argmax(0)
    samples = torch.arange(len(x), device=x.device)
    return torch.stack(ends)[choice, samples], torch.tensor(sorted(grid), device=x.device, dtype=x.dtype)[choice]


def pgd(
    model: JointModel, x: Float[Tensor, "batch *shape"], y: Int[Tensor, "batch"], *, eps: float, gamma: float, T: int
) -> Float[Tensor, "batch *shape"]:
    """Algorithm 1 from delta = 0: `sign_steps` up the cross-entropy."""
    x_adv = sign_steps(lambda x_adv: F.cross_entropy(model(x_adv), y, reduction="sum"), x, eps=eps, step=gamma, T=T)
    model.zero_grad()
    return x_adv


def sign_steps(loss_of: Callable[[Tensor], Tensor], x: Tensor, *, eps: float, step: float, T: int) -> Tensor:
    """delta <- delta + step * sign(gradient), clipped to [-eps, eps] and x + delta to [0, 1]; T times from 0."""
    delta = torch.zeros_like(x)
    for _ in range(T):
        point = (x + delta).requires_grad_()
        loss_of(point).backward()  # type: ignore[no-untyped-call]
        delta = (delta + step * _gradient(point).sign()).clamp(-eps, eps)
        delta = (x + delta).clamp(0, 1) - x
    return x + delta


def _gradient(x: Tensor) -> Tensor:
    """The gradient that `backward` stored at `x`."""
    if x.grad is None:
        raise RuntimeError("backward() stored no gradient at the input")
    return x.grad
