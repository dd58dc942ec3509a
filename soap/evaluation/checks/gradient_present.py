"""Check 5: every image has a finite, non-zero gradient, by cross-entropy or margin."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.attacks.losses import cross_entropy, margin
from soap.errors import InputError
from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import MeasurementContext
from soap.gradient_rules import logits_and_gradient


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


def measure(context: MeasurementContext) -> GradientPresence:
    """Count images without a usable gradient."""
    attacked, bare = context.model, context.defence.classifier
    return GradientPresence(
        images=len(context.x),
        attacked=_missing(context, attacked),
        bare=None if bare is None else _missing(context, bare),
    )


def _missing(context: MeasurementContext, model: nn.Module) -> MissingGradients:
    none, bad, flat = 0, 0, 0
    for x, y in zip(torch.split(context.x, context.batch), torch.split(context.y, context.batch), strict=True):
        try:
            with isolated(model):
                seen = [logits_and_gradient(model, x, partial(loss, y=y))[1] for loss in (cross_entropy, margin)]
        except InputError:
            every = len(context.x)
            return MissingGradients(missing=every, not_finite=0, cross_entropy_zero=every, cut=True)
        finite = torch.stack([torch.isfinite(one).flatten(1).all(1) for one in seen]).all(0)
        zero = torch.stack([(one == 0).flatten(1).all(1) for one in seen])
        none, bad = none + int(zero.all(0).sum()), bad + int((~finite).sum())
        flat += int(zero[0].sum())
    return MissingGradients(missing=none, not_finite=bad, cross_entropy_zero=flat, cut=False)


MEASUREMENT = Measurement("gradient", GradientPresence, measure)


def judge(evidence: Evidence) -> Judgement:
    """FAIL where any image lacks a gradient."""
    found = evidence.record(MEASUREMENT)
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


CHECKS = (Check(5, "gradient present", judge, (MEASUREMENT,)),)
