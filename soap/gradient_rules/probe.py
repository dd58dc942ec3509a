"""Find out by trying whether a defence is random, and whether autograd gives its true gradient.

The true gradient predicts how the logits change: its product with a direction equals the central difference along it.
Straight-through tricks, rounding and detached results fail this comparison, or have no gradient at all. Sign steps
have a derivative almost everywhere that says nothing about the jumps between, so the comparison is made at several
step lengths: a jump of size J shows as an error J / h.

Errors are relative to the root mean square slope of a sample over random directions, |gradient| / sqrt(dimension), and
their median is taken over samples and directions, because a kink of a ReLU spoils single ones. Measured on an MNIST
CNN, a CIFAR-10 ResNet-18 and small networks: for denoisers, filters, pooling and differentiated descent the median was
at most 0.02 at the best length and 0.4 at the worst. For straight-through tricks it was at least 0.14 at the best
length and 0.7 at the worst, and for sign steps of 0.02 to 0.05 at least 1.2 at the worst. The limits are between.
Smaller sign steps can pass; their gradient almost everywhere is that of straight-through, so nothing is lost.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from soap._runtime.isolation import frozen
from soap._runtime.seeding import seed_for
from soap.balls import per_sample, row_norms
from soap.gradient_rules.random_draws import OwnGenerator, own_generators, seeded_draws
from soap.gradient_rules.relaxed import Relaxed
from soap.gradient_rules.rule import Purify, declared_gradient, images_of, purified_images
from soap.shapes import Float, Tensor

SAMPLES_FOR_DRAWS, SAMPLES_FOR_SLOPES = 8, 4
"""Samples whose logits are compared between draws, and samples whose gradient is compared with differences."""

SEEDS = 4
"""Different random states whose logits are compared; the first is also used twice."""

DIRECTIONS = 5
"""Random directions for each step length."""

STEPS = {torch.float64: (1e-6, 1e-5, 3e-4, 1e-3, 3e-3), torch.float32: (1e-4, 3e-4, 1e-3, 3e-3)}
"""Root mean square change of a coordinate in a step, as a share of the range of `x`. Rounding of float32 logits spoils
differences over shorter steps; jumps show in longer ones."""

MASKS = 3
"""Times that other values are tried in half of the places."""

MAX_ERROR = 0.1
"""Limit of the median error at the best step length."""

MAX_ERROR_OF_ALL_STEPS = 0.6
"""Limit of the median error at every step length: larger ones are jumps."""

MAX_ROUNDING = 1e-5
"""Differences of logits up to this share of the largest logit count as rounding, not as randomness."""


@dataclass(frozen=True, kw_only=True)
class GradientProbe:
    """What was found by trying a defence on a few samples."""

    random: bool
    """Whether logits differ between calls."""
    exact: bool
    """Whether the gradient of the whole defence by autograd is its true gradient."""
    relaxed: bool = False
    """Whether autograd gives a gradient once rounding and detached results count as the identity (`Relaxed`)."""
    by_value: bool = False
    """Whether the purifier changes each value by itself and never reverses an order, such as rounding."""
    reason: str
    """Why the exact gradient is sound, or why it is not."""
    repeatable: bool
    """Whether the same random state gives the same logits, so that draws can be repeated from a seed."""
    spread: float
    """Largest difference of logits between calls, relative to the largest logit."""
    samples: int
    """Samples whose gradient was tried."""
    samples_with_gradient: int
    """Samples whose gradient is finite and not zero."""
    precision: str
    """Precision of the differences; empty if none were made."""
    errors: tuple[float, ...]
    """Median error for each step length, relative to the root mean square slope; empty if none were made."""


def probe_gradient(
    classifier: nn.Module, purifier: Purify | None, x: Float[Tensor, "batch *shape"], *, seed: int = 0
) -> GradientProbe:
    """Return whether the defence is random and whether its exact gradient is sound, tried on the first samples of `x`.

    purifier: None for a module that is differentiated as a whole. In double precision where possible. The result
    depends on the arguments only; modes, weights and random states do not change. Cost: about 6 evaluations of 8
    samples, and, if there is a gradient, about 50 of 4 samples.
    """
    networks = nn.ModuleList([part for part in (classifier, purifier) if isinstance(part, nn.Module)])
    with torch.inference_mode(False), frozen(networks):
        generators = own_generators(classifier, purifier)
        logits = _defence_logits(classifier, purifier)
        points = _interior(x, seed)
        spread, repeatable = _spread(logits, points[:SAMPLES_FOR_DRAWS], generators, seed)
        few = points[:SAMPLES_FOR_SLOPES]
        found = _compared(logits, few, generators, seed)
        open_steps = not found["exact"] and declared_gradient(purifier) is None
        relaxed = open_steps and _is_relaxed(Relaxed(classifier, purifier), logits, few, generators, seed)
        random = spread > MAX_ROUNDING
        by_value = not (random or found["exact"] or purifier is None) and changes_by_value(purifier, few, seed)
    return GradientProbe(
        random=random, repeatable=repeatable, spread=spread, relaxed=relaxed, by_value=by_value, **found
    )


def _defence_logits(classifier: nn.Module, purifier: Purify | None) -> Callable[[Tensor], Tensor]:
    def logits(x: Tensor) -> Tensor:
        with torch.enable_grad():  # a user's purifier may rely on gradients being enabled
            out: Tensor = classifier(x if purifier is None else images_of(purifier, x))
        return out

    return logits


def _interior(x: Tensor, seed: int) -> Tensor:
    """Return the samples a little inside their range and with a little noise.

    Clipping has a kink at the ends of the range, and median filters and pooling have kinks at equal pixels.
    """
    x = x.detach().clone()
    low, high = x.min(), x.max()
    noise = _normal(x, torch.Generator().manual_seed(seed_for(seed, 0))).clamp(-2, 2)
    return low + (high - low) * 0.02 + 0.96 * (x - low) + 0.005 * (high - low) * noise


def _spread(
    logits: Callable[[Tensor], Tensor], x: Tensor, generators: list[OwnGenerator], seed: int
) -> tuple[float, bool]:
    """Return the largest relative difference of logits between calls, and whether the same seed repeats them."""

    def drawn(number: int) -> Tensor:
        with seeded_draws(seed_for(seed, 1, number), generators):
            return logits(x).detach()

    first, again = drawn(0), drawn(0)
    others = [drawn(number) for number in range(1, SEEDS)]
    scale = first.abs().max().clamp_min(torch.finfo(first.dtype).tiny)
    repeats = ((again - first).abs().max() / scale).item()
    between = max(((other - first).abs().max() / scale).item() for other in others)
    return max(repeats, between), repeats <= MAX_ROUNDING


def _compared(
    logits: Callable[[Tensor], Tensor], x: Tensor, generators: list[OwnGenerator], seed: int
) -> dict[str, Any]:
    """Return the fields of `GradientProbe` about the gradient, from double precision if the defence allows it."""
    try:
        with _InDouble():
            return _slopes(logits, x.double(), generators, seed)
    except Exception:  # a user's code may raise anything for another precision
        pass
    try:
        return _slopes(logits, x if x.dtype in STEPS else x.float(), generators, seed)
    except Exception as error:  # a purifier that leaves torch raises for inputs that need a gradient
        cause = (str(error).splitlines() or [""])[0]
        why = f"the defence has no gradient ({type(error).__name__}: {cause})"
        found = {"samples": len(x), "samples_with_gradient": 0, "precision": "", "errors": ()}
        return found | {"exact": False, "reason": why}


def _is_relaxed(
    rule: Relaxed, logits: Callable[[Tensor], Tensor], x: Tensor, generators: list[OwnGenerator], seed: int
) -> bool:
    """Return whether the rule gives the logits of the defence and a gradient for most samples."""
    x, seed = x.detach().clone().requires_grad_(), seed_for(seed, 4)
    try:
        with torch.no_grad(), seeded_draws(seed, generators):
            expected = logits(x.detach())
        with torch.enable_grad(), seeded_draws(seed, generators):
            out = rule(x)
            (gradient,) = torch.autograd.grad(out.amax(1).sum(), x)
    except Exception:  # a user's code may raise anything for inputs that need a gradient
        return False
    good = torch.isfinite(gradient).flatten(1).all(1) & (gradient != 0).flatten(1).any(1)
    return bool(torch.allclose(out.detach(), expected.detach(), rtol=1e-3, atol=1e-4) and good.sum() * 2 > len(x))


def changes_by_value(purifier: Purify, x: Float[Tensor, "batch *shape"], seed: int = 0) -> bool:
    """Return whether each purified value depends on its own value alone and never falls where that rises.

    Tried by other values in half of the places, and by raising all values.
    """
    generator = torch.Generator().manual_seed(seed_for(seed, 5))
    low, high = x.min(), x.max()
    purified = purified_images(purifier, x)
    for _ in range(MASKS):
        draw = torch.rand(2, *x.shape, generator=generator).to(x)
        changed, kept = torch.where(draw[0] < 0.5, low + (high - low) * draw[1], x), draw[0] >= 0.5
        if not torch.equal(purified_images(purifier, changed)[kept], purified[kept]):
            return False
        raised = purified_images(purifier, torch.maximum(x, low + (high - low) * draw[1]))
        if (raised < purified).any():
            return False
    return True


def _slopes(logits: Callable[[Tensor], Tensor], x: Tensor, generators: list[OwnGenerator], seed: int) -> dict[str, Any]:
    """Compare the gradient of a random combination of the logits with central differences; see the module's text."""
    draws = torch.Generator().manual_seed(seed_for(seed, 2))
    weights: Tensor | None = None

    def value(point: Tensor) -> Tensor:
        nonlocal weights
        with seeded_draws(seed_for(seed, 3), generators):
            out = logits(point)
        if weights is None:
            weights = _normal(out[:1], draws)
        return (out * weights).sum(1)

    found: dict[str, Any] = {"samples": len(x), "precision": "", "errors": ()}
    point = x.detach().requires_grad_()
    out = value(point)
    gradient = torch.autograd.grad(out.sum(), point, allow_unused=True)[0] if out.requires_grad else None
    if gradient is None:
        return found | {
            "exact": False,
            "samples_with_gradient": 0,
            "reason": "the defence has no gradient: it is detached",
        }
    good = torch.isfinite(gradient).flatten(1).all(1) & (gradient != 0).flatten(1).any(1)
    found["samples_with_gradient"] = int(good.sum())
    if good.sum() * 2 <= len(x):
        why = f"the gradient is finite and not zero for only {int(good.sum())} of {len(x)} samples"
        return found | {"exact": False, "reason": why}
    root = math.sqrt(x[0].numel())
    slope = row_norms(gradient)[good] / root
    unit = (x.max() - x.min()).item() * root
    medians = []
    for h in (length * unit for length in STEPS[x.dtype]):
        errors = []
        for _ in range(DIRECTIONS):
            way = _normal(x, draws).clamp(-2, 2)  # a purifier may refuse points outside the range
            way = way / per_sample(row_norms(way), way)
            ahead, behind = (value(x + move * way).detach() for move in (h, -h))
            by_gradient = (gradient * way).flatten(1).sum(1)
            errors.append(((ahead - behind) / (2 * h) - by_gradient)[good].abs() / slope)
        medians.append(torch.cat(errors).nan_to_num(nan=torch.inf).median().item())
    found |= {"precision": str(x.dtype).removeprefix("torch."), "errors": tuple(medians)}
    agrees = min(medians) <= MAX_ERROR
    exact = agrees and max(medians) <= MAX_ERROR_OF_ALL_STEPS
    if agrees and not exact:
        why = f"the logits jump: the median error over longer steps is {max(medians):.2g}"
    else:
        verb = "agrees" if agrees else "disagrees"
        why = f"the gradient {verb} with central differences in {found['precision']}: median error {min(medians):.2g}"
    return found | {"exact": exact, "reason": why}


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return normal numbers of the shape of `like`, equal on every device and nearly so in every precision."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


class _InDouble(TorchFunctionMode):
    """Context in which torch computes in double precision: float tensors are converted on their way in and out."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__set__":  # requires_grad of a parameter, not of its copy
            return function(*args, **(kwargs or {}))
        out = function(*_doubled(args), **_doubled(kwargs or {}))
        return _doubled(out) if isinstance(out, Tensor) else out


def _doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() and value.dtype != torch.float64 else value
    if type(value) in (list, tuple):
        return type(value)(map(_doubled, value))
    return {key: _doubled(part) for key, part in value.items()} if type(value) is dict else value
