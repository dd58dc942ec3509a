"""Names of `soap.gradient_rules.finite` that the adaptive suite uses."""

from soap.gradient_rules.finite import FiniteLogits as Attackable
from soap.gradient_rules.finite import with_finite_logits as attackable

__all__ = ["Attackable", "attackable"]
