"""Balls around an input: how far a walk may go and which way it climbs fastest.

A ball has three verbs. `project` moves a perturbation to the nearest one inside, `random_start` draws one
inside, `steepest` turns a gradient into the unit step that raises a linear function most. `eps` is one
radius for all rows or a tensor with one radius a row; nothing here knows about images.
"""

from dataclasses import dataclass

import torch

from soap.shapes import Float, Tensor


def _per_row(eps: float | Tensor, like: Tensor) -> float | Tensor:
    """`eps` so that it broadcasts against `like` [batch, ...]; a number stays one: copying it would stall a GPU."""
    return _column(eps, like) if isinstance(eps, Tensor) else eps


def _column(values: Tensor, like: Tensor) -> Tensor:
    """One value a row, shaped to broadcast against `like` [batch, ...]."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def row_norms(delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
    """Euclidean norm of every row."""
    norms: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return norms


@dataclass(frozen=True)
class Linf:
    """Every coordinate moves by at most `eps`."""

    eps: float | Tensor

    def project(self, delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Clip every coordinate to [-eps, eps]."""
        radius = _per_row(self.eps, delta)
        return delta.clamp(-radius, radius)  # type: ignore[arg-type]

    def random_start(
        self, like: Float[Tensor, "batch *shape"], generator: torch.Generator
    ) -> Float[Tensor, "batch *shape"]:
        """Draw uniformly from the ball."""
        uniform = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        return (2 * uniform - 1) * _per_row(self.eps, like)

    def steepest(self, gradient: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """The sign of the gradient; a zero gradient gives no step."""
        return gradient.sign()


@dataclass(frozen=True)
class L2:
    """Every row moves by at most `eps` in Euclidean norm."""

    eps: float | Tensor

    def project(self, delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Scale rows that are too long back onto the sphere."""
        norms = _column(row_norms(delta), delta)
        radius = _per_row(self.eps, delta)
        # where, not min(1, r/n): rows inside the ball must come back bit for bit.
        return torch.where(norms > radius, delta * (radius / norms.clamp_min(1e-30)), delta)

    def random_start(
        self, like: Float[Tensor, "batch *shape"], generator: torch.Generator
    ) -> Float[Tensor, "batch *shape"]:
        """Draw uniformly from the ball: a Gaussian direction at radius eps * u^(1/d)."""
        normal = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        uniform = torch.rand(len(like), dtype=like.dtype, device=like.device, generator=generator)
        distance = _column(uniform ** (1 / like[0].numel()), like) * _per_row(self.eps, like)
        return self.steepest(normal) * distance

    def steepest(self, gradient: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """The gradient at unit length; a zero gradient gives no step, nor does a coordinate that is not finite."""
        finite = gradient.nan_to_num(0.0, 0.0, 0.0)
        # Scaled to a largest coordinate of 1 first: the square of a tiny one is zero, that of a huge one infinite.
        peak = _column(finite.flatten(1).abs().amax(1), finite)
        scaled = finite / (peak + (peak == 0))
        return scaled / _column(row_norms(scaled), scaled).clamp_min(1)


Ball = Linf | L2
