"""Check 6: the gradient agrees with central differences, or the rule that replaces it is named."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.attacks.losses import margin
from soap.balls import row_norms
from soap.errors import InputError
from soap.evaluation.checks import optimisation
from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement, NotMeasuredError
from soap.evaluation.checks.context import ImpossibleError, MeasurementContext
from soap.evaluation.checks.deterministic import FixedDraw
from soap.evaluation.plan import BPDA, RULES, START, TRAJECTORY, UNROLLED
from soap.gradient_rules import OwnGradient, logits_and_gradient
from soap.shapes import Float, Tensor

DIRECTIONS = 32
IMAGES = 8
STEP = {torch.float64: 1e-5, torch.float32: 1e-3}
SMOOTH = {torch.float64: 1e-4, torch.float32: 1e-2}
"""The loss counts as smooth where slopes over a step and half a step, ahead and behind, differ by less (relative)."""

MAX_ERROR = {"float64": 1e-3, "float32": 0.2}
"""Errors relative to the largest slope that rounding may cause."""

RULE_TEXTS = {
    RULES[BPDA]: "BPDA: the purifier is the identity in the backward pass",
    RULES[START]: "BPDA before the purifier: the gradient at the attacker's own point",
    RULES[TRAJECTORY]: "BPDA along the path: the mean gradient over the purifier's iterates",
    RULES[UNROLLED]: "surrogate: through the purifier's steps with tanh for sign in the backward pass",
}


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


def measure(context: MeasurementContext) -> GradientError:
    """Compare the gradient of the margin with central differences along random directions.

    In double precision on a copy; in single where the model does not support double. With a purifier the classifier
    alone is differentiated, and the rule that replaces the purifier's gradient is named.
    """
    defence, rule = context.defence, context.strongest.rule
    part = defence.classifier if rule in RULE_TEXTS else None
    model = context.model if part is None else part
    text = RULE_TEXTS.get(rule, "surrogate: the model's own rule" if isinstance(model, OwnGradient) else "gradient")
    x, y = context.few(IMAGES)
    x = x.clamp(0.01, 0.99)
    try:
        twin, points = copy.deepcopy(model).double(), x.double()
        with isolated(twin), torch.no_grad():
            twin(points)
    except Exception:  # a user's model may raise anything when it is copied or converted
        twin, points = model, x
    with isolated(twin):
        with_gradient, directions, error = compare_slopes(FixedDraw(twin, context.seed), points, y, context.seed)
    return GradientError(
        rule=text,
        whole=part is None,
        precision=str(points.dtype).removeprefix("torch."),
        images=len(x),
        images_with_gradient=with_gradient,
        directions=directions,
        error=error,
    )


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


MEASUREMENT = Measurement("differences", GradientError, measure)


def judge(evidence: Evidence) -> Judgement:
    """FAIL where a gradient that claims to be exact is not."""
    found = evidence.record(MEASUREMENT)
    rule = found.rule
    if rule == "gradient" and evidence.record(optimisation.MEASUREMENT).found:
        rule = "BPDA or surrogate: the module optimises inside, and autograd sees a part of it"
    if found.error is None:
        raise NotMeasuredError(f"{found.images} images have a zero gradient or no smooth loss: nothing to compare.")
    measured = f"error {found.error:.1e} on {found.directions} directions, {found.precision}"
    if found.error <= MAX_ERROR[found.precision]:
        return PASS, f"{measured}; {rule}", "The gradient is that of the loss."
    if found.whole and rule != "gradient":
        return PASS, f"{measured}; {rule}", "The direction is not the gradient, and does not claim to be."
    return FAIL, measured, "Autograd's gradient is not the slope of the loss: attacks go in a wrong direction."


CHECKS = (Check(6, "gradient correct", judge, (MEASUREMENT,)),)
