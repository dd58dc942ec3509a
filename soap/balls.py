"""Linf and L2 balls of perturbations: projection, random points, and the direction of steepest ascent.

`eps` is one radius for all samples, or a tensor with one radius per sample. Nothing here is specific to images.
"""

from dataclasses import dataclass

import torch

from soap.shapes import Float, Tensor


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per sample, shaped to broadcast against `like` [batch, ...]."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def _radius(eps: float | Tensor, like: Tensor) -> float | Tensor:
    """Return `eps` so that it broadcasts against `like`; a float stays one, because copying it would stall a GPU."""
    return per_sample(eps, like) if isinstance(eps, Tensor) else eps


def row_norms(delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
    """Return the L2 norm of every sample."""
    norms: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return norms


@dataclass(frozen=True)
class Linf:
    """Perturbations whose every coordinate is at most `eps` in absolute value."""

    eps: float | Tensor

    def project(self, delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Clip every coordinate to [-eps, eps]."""
        radius = _radius(self.eps, delta)
        return delta.clamp(-radius, radius)  # type: ignore[arg-type]

    def random_start(
        self, like: Float[Tensor, "batch *shape"], generator: torch.Generator
    ) -> Float[Tensor, "batch *shape"]:
        """Return points drawn uniformly from the ball."""
        uniform = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        return (2 * uniform - 1) * _radius(self.eps, like)

    def steepest(self, gradient: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the sign of the gradient; zero where the gradient is zero."""
        return gradient.sign()


@dataclass(frozen=True)
class L2:
    """Perturbations of L2 norm at most `eps`."""

    eps: float | Tensor

    def project(self, delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Scale perturbations outside the ball onto the sphere."""
        norms = per_sample(row_norms(delta), delta)
        radius = _radius(self.eps, delta)
        # where, not min(1, r/n): perturbations inside the ball must stay equal to the last bit.
        return torch.where(norms > radius, delta * (radius / norms.clamp_min(1e-30)), delta)

    def random_start(
        self, like: Float[Tensor, "batch *shape"], generator: torch.Generator
    ) -> Float[Tensor, "batch *shape"]:
        """Return points drawn uniformly from the ball: a Gaussian direction at radius eps * u^(1/d)."""
        normal = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        uniform = torch.rand(len(like), dtype=like.dtype, device=like.device, generator=generator)
        distance = per_sample(uniform ** (1 / like[0].numel()), like) * _radius(self.eps, like)
        return self.steepest(normal) * distance

    def steepest(self, gradient: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the gradient scaled to unit norm; zero for a zero gradient, and at NaN or infinite coordinates."""
        finite = gradient.nan_to_num(0.0, 0.0, 0.0)
        # Scale the largest coordinate to 1 first: the square of a tiny one underflows, that of a huge one overflows.
        peak = per_sample(finite.flatten(1).abs().amax(1), finite)
        scaled = finite / (peak + (peak == 0))
        return scaled / per_sample(row_norms(scaled), scaled).clamp_min(1)


Ball = Linf | L2
"""A ball of perturbations around zero."""

BALLS: dict[str, type[Linf] | type[L2]] = {"linf": Linf, "l2": L2}
"""Balls by the name of their norm."""
