"""All that claims are judged by."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from soap.evaluation.gathered import Material
from soap.paper.verdicts.numbers import Tables


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured.

    tables: our numbers in the paper's tables. seconds: an epoch's by recipe, those of one network on one machine.
    material: what figures are drawn from: rows of sweeps, and a folder of curves and images.
    """

    tables: Tables = field(repr=False)
    seconds: Mapping[str, float] = field(repr=False)
    material: Material = field(repr=False)
