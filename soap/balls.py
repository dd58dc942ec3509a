"""Linf, L2 and L1 balls of perturbations: projection, random points, and the direction of steepest ascent.

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


L1_STEP_SHARE = 0.01
"""Share of the coordinates that a step in L1 changes (Tramer & Boneh 2019)."""


@dataclass(frozen=True)
class L1:
    """Perturbations whose coordinates sum to at most `eps` in absolute value."""

    eps: float | Tensor

    def project(self, delta: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the nearest points of the ball: every coordinate is moved towards zero by the same amount."""
        return self.project_in_box(delta, -torch.inf, torch.inf)

    def project_in_box(
        self, delta: Float[Tensor, "batch *shape"], low: float | Tensor, high: float | Tensor
    ) -> Float[Tensor, "batch *shape"]:
        """Return the nearest points of the ball between `low` <= 0 and `high` >= 0 (Croce & Hein 2021).

        They have the sign of `delta` and the sizes min(max(|delta| - t, 0), room), where room is |high| or |low|, and
        t >= 0 is the smallest number for which the sizes sum to at most `eps`. One sort for each sample.
        """
        sizes = delta.abs().flatten(1)
        room = torch.where(delta > 0, high, -torch.as_tensor(low)).to(delta).flatten(1)
        radius = self.eps if isinstance(self.eps, Tensor) else delta.new_full((len(delta),), self.eps)
        capped = sizes.minimum(room)
        shrink = _shrinkage(sizes, (sizes - room).clamp_min(0), radius)
        inside = (sizes - shrink[:, None]).clamp_min(0).minimum(room)
        inside = inside * (radius / inside.sum(1).clamp_min(1e-30)).clamp_max(1)[:, None]  # rounding of t
        sizes = torch.where((capped.sum(1) > radius)[:, None], inside, capped)
        return delta.sign() * sizes.reshape(delta.shape)

    def random_start(
        self, like: Float[Tensor, "batch *shape"], generator: torch.Generator
    ) -> Float[Tensor, "batch *shape"]:
        """Return points drawn uniformly from the ball: exponential sizes with random signs, at radius eps * u^(1/d)."""
        drawn = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        signed = 2 * drawn - 1
        sizes = -(1 - signed.abs()).clamp_min(1e-30).log()  # exponential, independent of the sign
        share = sizes / per_sample(sizes.flatten(1).sum(1).clamp_min(1e-30), like)
        uniform = torch.rand(len(like), dtype=like.dtype, device=like.device, generator=generator)
        distance = per_sample(uniform ** (1 / like[0].numel()), like) * _radius(self.eps, like)
        return signed.sign() * share * distance

    def steepest(self, gradient: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return equal steps, together of L1 norm 1, along the largest 1 % of the coordinates (at least one).

        The best step to first order changes one coordinate; several at once need fewer steps.
        """
        return sparse_sign(gradient, torch.full((len(gradient),), L1_STEP_SHARE, device=gradient.device))


def sparse_sign(
    gradient: Float[Tensor, "batch *shape"], share: Float[Tensor, "batch"]
) -> Float[Tensor, "batch *shape"]:
    """Return the signs of the largest coordinates of every sample, a `share` of all and at least one; L1 norm 1."""
    finite = gradient.nan_to_num(0.0, 0.0, 0.0)
    flat = finite.flatten(1).abs()
    order = flat.argsort(dim=1, descending=True, stable=True)
    count = (share * flat.shape[1]).round().clamp(1, flat.shape[1])
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(flat.shape[1], device=flat.device).expand_as(order))
    signs = torch.where((rank < count[:, None]).reshape(finite.shape), finite.sign(), 0.0)
    return signs / per_sample(signs.flatten(1).abs().sum(1).clamp_min(1), signs)


def _shrinkage(
    top: Float[Tensor, "batch n"], bottom: Float[Tensor, "batch n"], total: Float[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """Return t with sum_i |[bottom_i, top_i] above t| = total: the part of all intervals that is larger than t.

    The sum is piecewise linear in t, with corners at the ends of the intervals.
    """
    ends, order = torch.cat([top, bottom], 1).sort(dim=1, descending=True)
    opened = (
        torch.where(order < top.shape[1], 1.0, -1.0).to(top.dtype).cumsum(1)
    )  # intervals that contain the gap below
    gaps = ends - torch.cat([ends[:, 1:], ends.new_zeros(len(ends), 1)], 1)
    above = (opened * gaps).cumsum(1)  # the sum at the lower end of every gap
    k = (above < total[:, None]).sum(1).clamp_max(ends.shape[1] - 1)[:, None]
    before = torch.where(k > 0, above.gather(1, (k - 1).clamp_min(0)), 0.0)
    return (ends.gather(1, k) - (total[:, None] - before) / opened.gather(1, k).clamp_min(1))[:, 0].clamp_min(0)


Ball = Linf | L2 | L1
"""A ball of perturbations around zero."""

BALLS: dict[str, type[Linf] | type[L2] | type[L1]] = {"linf": Linf, "l2": L2, "l1": L1}
"""Balls by the name of their norm."""
