"""Algorithm 2 of the paper, line by line: the reference for SOAP."""

import torch

from soap.auxiliary import JointModel


def plain_purify(model: JointModel, x: torch.Tensor, eps: float, gamma: float, T: int) -> torch.Tensor:
    """delta <- delta - gamma * sign(grad); clip to [-eps, eps]; clip x + delta to [0, 1]; T times."""
    delta = torch.zeros_like(x)
    for _ in range(T):
        point = (x + delta).requires_grad_()
        loss = model.auxiliary.loss(model, point).sum()
        loss.backward()
        delta = delta - gamma * torch.sign(point.grad)
        delta = torch.minimum(torch.maximum(delta, torch.tensor(-eps)), torch.tensor(eps))
        delta = torch.minimum(torch.maximum(x + delta, torch.tensor(0.0)), torch.tensor(1.0)) - x
    model.zero_grad()
    return x + delta


def plain_min_aux(
    model: JointModel, x: torch.Tensor, grid: tuple[float, ...], gamma: float, T: int, tie: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One image at a time, one radius after another: the smallest radius whose loss is within `tie` of the least."""
    chosen, images = [], []
    for image in x.split(1):
        ends = {eps: plain_purify(model, image, eps, gamma, T) for eps in sorted(grid)}
        losses = {eps: model.auxiliary.loss(model, end).item() for eps, end in ends.items()}
        least = min(losses.values())
        eps = min(eps for eps, loss in losses.items() if loss <= least * (1 + tie))
        chosen.append(eps)
        images.append(ends[eps])
    return torch.cat(images).detach(), torch.tensor(chosen)
