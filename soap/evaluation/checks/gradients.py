"""Checks 5 and 6: every image has a gradient, and it agrees with central differences, or the rule that replaces it is
named."""

import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap._runtime.seeding import seed_for
from soap.attacks.losses import cross_entropy, margin
from soap.balls import row_norms
from soap.errors import InputError
from soap.evaluation.checks import optimisation
from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement, NotMeasuredError
from soap.evaluation.checks.context import ImpossibleError, MeasurementContext
from soap.evaluation.protocols import EXACT, ITERATES, RELAXED, START, STRAIGHT_THROUGH, SURROGATE, UNROLLED
from soap.gradient_rules import OwnGradient, logits_and_gradient
from soap.gradient_rules.random_draws import own_generators, seeded_draws
from soap.shapes import Float, Tensor


@dataclass(frozen=True, kw_only=True)
class MissingGradients:
    """Images without a gradient, with a non-finite one, and with a zero one by cross-entropy alone.

    cut: whether the graph is cut, so that there is no gradient at all.
    """

    missing: int
    not_finite: int
    cross_entropy_zero: int
    cut: bool


@dataclass(frozen=True, kw_only=True)
class GradientPresence:
    """Missing gradients of the defence as the strongest attack sees it, and of the classifier where it is known."""

    images: int
    attacked: MissingGradients
    bare: MissingGradients | None = None


def measure_presence(context: MeasurementContext) -> GradientPresence:
    """Count images without a usable gradient."""
    attacked, bare = context.model, context.defence.classifier
    return GradientPresence(
        images=len(context.x),
        attacked=_missing(context, attacked),
        bare=None if bare is None else _missing(context, bare),
    )


def _missing(context: MeasurementContext, model: nn.Module) -> MissingGradients:
    none, bad, flat = 0, 0, 0
    for x, y in context.batches(context.x, context.y):
        try:
            with isolated(model):
                seen = [logits_and_gradient(model, x, partial(loss, y=y))[1] for loss in (cross_entropy, margin)]
        except InputError:
            return MissingGradients(missing=len(context.x), not_finite=0, cross_entropy_zero=len(context.x), cut=True)
        finite = torch.stack([torch.isfinite(one).flatten(1).all(1) for one in seen]).all(0)
        zero = torch.stack([(one == 0).flatten(1).all(1) for one in seen])
        none, bad = none + int(zero.all(0).sum()), bad + int((~finite).sum())
        flat += int(zero[0].sum())
    return MissingGradients(missing=none, not_finite=bad, cross_entropy_zero=flat, cut=False)


PRESENCE = Measurement("gradient", GradientPresence, measure_presence)


def judge_presence(evidence: Evidence) -> Judgement:
    """FAIL where any image lacks a gradient."""
    found = evidence.record(PRESENCE)
    views = [view for view in (found.attacked, found.bare) if view is not None]
    if any(view.cut for view in views):
        return FAIL, "no gradient at all", "The graph is cut: outputs do not depend differentiably on the image."
    lost = max(view.missing + view.not_finite for view in views)
    flat = max(view.cross_entropy_zero for view in views)
    measured = f"{lost} of {found.images} images without a gradient"
    if lost:
        return FAIL, measured, "Attacks cannot follow zero or non-finite gradients, so robustness is unknown."
    if flat:
        measured += f" ({flat} by cross-entropy alone)"
    return PASS, measured, "Attacks have a gradient to follow on every image."


DIRECTIONS = 32
IMAGES = 8
STEP = {torch.float64: 1e-5, torch.float32: 1e-3}
SMOOTH = {torch.float64: 1e-4, torch.float32: 1e-2}
"""The loss counts as smooth where slopes over a step and half a step, ahead and behind, differ by less (relative)."""

MAX_ERROR = {"float64": 1e-3, "float32": 0.2}
"""Errors relative to the largest slope that rounding may cause."""

RULE_TEXTS = {
    STRAIGHT_THROUGH: "BPDA: the purifier is the identity in the backward pass",
    START: "BPDA before the purifier: the gradient at the attacker's own point",
    ITERATES: "BPDA along the path: the mean gradient over the purifier's iterates",
    UNROLLED: "surrogate: through the purifier's steps with tanh for sign in the backward pass",
    RELAXED: "relaxed: autograd, with the identity for rounding and for cuts of the graph",
    SURROGATE: "imitation: through a network that imitates the purifier",
}


EXACT_TEXT = "exact: autograd through purifier and classifier"


@dataclass(frozen=True, kw_only=True)
class GradientError:
    """Largest error of the gradient, relative to the largest slope; None where the loss is nowhere smooth.

    rule: how attacks obtain the gradient. whole: whether the whole defence was differentiated, or the classifier
    alone. directions: random directions along which at least one image is smooth.
    """

    rule: str
    whole: bool
    precision: str
    images: int
    images_with_gradient: int
    directions: int
    error: float | None


def measure_differences(context: MeasurementContext) -> GradientError:
    """Compare the gradient of the margin with central differences along random directions.

    In double precision on a copy; in single where the model does not support double. With a purifier the classifier
    alone is differentiated, and the rule that replaces the purifier's gradient is named.
    """
    defence, rule = context.defence, context.strongest.rule
    part = defence.classifier if rule in RULE_TEXTS else None
    model = replace(context.strongest, draws=1).seen(context.defence) if part is None else part
    own = rule != EXACT and isinstance(model, OwnGradient)
    text = EXACT_TEXT if rule == EXACT else "surrogate: the model's own rule" if own else "gradient"
    text = RULE_TEXTS.get(rule, text)
    x, y = context.few(IMAGES)
    x = x.clamp(0.01, 0.99)
    try:
        twin, points = copy.deepcopy(model).double(), x.double()
        with isolated(twin), torch.no_grad():
            twin(points)
    except Exception:  # a user's model may raise anything when it is copied or converted
        twin, points = model, x
    with isolated(twin):
        with_gradient, directions, error = compare_slopes(
            FixedDraw(twin, context.run.seed), points, y, context.run.seed
        )
    return GradientError(
        rule=text,
        whole=part is None,
        precision=str(points.dtype).removeprefix("torch."),
        images=len(x),
        images_with_gradient=with_gradient,
        directions=directions,
        error=error,
    )


class FixedDraw(nn.Module):
    """A random model with the same random numbers on every call."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        super().__init__()
        self.model, self.seed = model, seed

    def forward(self, x: Tensor) -> Tensor:
        """Logits after seeding; random states are restored."""
        with seeded_draws(seed_for(self.seed), own_generators(self.model)):
            logits: Tensor = self.model(x)
        return logits


def compare_slopes(
    model: nn.Module, x: Float[Tensor, "n *shape"], y: Tensor, seed: int
) -> tuple[int, int, float | None]:
    """(images with a gradient, smooth directions, largest error relative to the image's largest slope)."""

    def loss(point: Tensor) -> Tensor:
        return margin(model(point), y)

    try:
        _, gradient = logits_and_gradient(model, x, lambda z: margin(z, y))
    except InputError:
        raise ImpossibleError("there is no gradient to compare; see check 5") from None
    moved = (gradient != 0).flatten(1).any(1) & torch.isfinite(gradient).flatten(1).all(1)
    generator = torch.Generator().manual_seed(seed)
    step = STEP[x.dtype]
    with torch.no_grad():
        here = loss(x)
    slopes, by_gradient, changes = [], [], []
    for _ in range(DIRECTIONS):
        way = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        way /= row_norms(way).reshape(-1, *[1] * (x.ndim - 1))
        with torch.no_grad():
            far_behind, behind, ahead, far_ahead = (loss(x + h * way) for h in (-step, -step / 2, step / 2, step))
        wide, narrow = (far_ahead - far_behind) / (2 * step), (ahead - behind) / step
        # A kink closer than the steps changes both slopes alike; it shows in the slopes on its two sides.
        bend = (ahead - 2 * here + behind) / (step / 2)
        slopes.append(narrow)
        by_gradient.append((gradient * way).flatten(1).sum(1))
        changes.append(torch.maximum((wide - narrow).abs(), bend.abs()))
    true, found, change = torch.stack(slopes), torch.stack(by_gradient), torch.stack(changes)
    size = torch.maximum(true.abs().amax(0), found.abs().amax(0)).clamp_min(1e-30)
    smooth = (change <= SMOOTH[x.dtype] * size) & moved
    error = ((true - found).abs() / size)[smooth]
    return int(moved.sum()), int(smooth.any(1).sum()), float(error.max()) if len(error) else None


DIFFERENCES = Measurement("differences", GradientError, measure_differences)


def judge_differences(evidence: Evidence) -> Judgement:
    """FAIL where a gradient that claims to be exact is not."""
    found = evidence.record(DIFFERENCES)
    rule = found.rule
    if rule == "gradient" and evidence.record(optimisation.MEASUREMENT).found:
        rule = "BPDA or surrogate: the module optimises inside, and autograd sees a part of it"
    if found.error is None:
        raise NotMeasuredError(f"{found.images} images have a zero gradient or no smooth loss: nothing to compare.")
    measured = f"error {found.error:.1e} on {found.directions} directions, {found.precision}"
    if found.error <= MAX_ERROR[found.precision]:
        return PASS, f"{measured}; {rule}", "The gradient is that of the loss."
    if found.whole and rule not in ("gradient", EXACT_TEXT):
        return PASS, f"{measured}; {rule}", "The direction is not the gradient, and does not claim to be."
    return FAIL, measured, "Autograd's gradient is not the slope of the loss: attacks go in a wrong direction."


CHECKS = (
    Check(5, "gradient present", judge_presence, (PRESENCE,)),
    Check(6, "gradient correct", judge_differences, (DIFFERENCES,)),
)
