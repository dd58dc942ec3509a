"""Gradient rules: how an attack differentiates a purifier followed by a classifier."""

from soap.gradient_rules.bpda import MeanOverIterates, PathPurifier, StartPoint, StraightThrough
from soap.gradient_rules.probe import GradientProbe, probe_gradient
from soap.gradient_rules.random_draws import MeanOverDraws
from soap.gradient_rules.relaxed import Relaxed
from soap.gradient_rules.rule import (
    Criterion,
    Exact,
    FiniteLogits,
    GradientRule,
    OwnGradient,
    logits_and_gradient,
    with_finite_logits,
)
from soap.gradient_rules.surrogate import Surrogate, fit_surrogate
from soap.gradient_rules.unrolled import UnrollablePurifier, Unrolled

GRADIENT_RULES: dict[str, type[GradientRule]] = {
    "straight-through": StraightThrough,
    "start": StartPoint,
    "iterates": MeanOverIterates,
    "unrolled": Unrolled,
    "relaxed": Relaxed,
    "exact": Exact,
    "surrogate": Surrogate,
}
"""Rules for the gradient through a purifier. `GradientRule.applies_to` says which purifiers a rule accepts."""

__all__ = [
    "GRADIENT_RULES",
    "Criterion",
    "Exact",
    "FiniteLogits",
    "GradientProbe",
    "GradientRule",
    "MeanOverDraws",
    "MeanOverIterates",
    "OwnGradient",
    "PathPurifier",
    "Relaxed",
    "StartPoint",
    "StraightThrough",
    "Surrogate",
    "UnrollablePurifier",
    "Unrolled",
    "fit_surrogate",
    "logits_and_gradient",
    "probe_gradient",
    "with_finite_logits",
]
