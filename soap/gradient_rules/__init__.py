"""Gradient rules: how an attack differentiates a purifier followed by a classifier."""

from soap.gradient_rules.bpda import MeanOverIterates, PathPurifier, StartPoint, StraightThrough
from soap.gradient_rules.finite import FiniteLogits, with_finite_logits
from soap.gradient_rules.rule import Criterion, GradientRule, OwnGradient, logits_and_gradient
from soap.gradient_rules.unrolled import UnrollablePurifier, Unrolled

GRADIENT_RULES: dict[str, type[GradientRule]] = {
    "straight-through": StraightThrough,
    "start": StartPoint,
    "iterates": MeanOverIterates,
    "unrolled": Unrolled,
}
"""Rules for the gradient through a purifier. `GradientRule.applies_to` says which purifiers a rule accepts."""

__all__ = [
    "GRADIENT_RULES",
    "Criterion",
    "FiniteLogits",
    "GradientRule",
    "MeanOverIterates",
    "OwnGradient",
    "PathPurifier",
    "StartPoint",
    "StraightThrough",
    "UnrollablePurifier",
    "Unrolled",
    "logits_and_gradient",
    "with_finite_logits",
]
