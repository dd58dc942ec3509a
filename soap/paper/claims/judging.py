"""Whether each claim of the paper held: computed from what was measured, by a rule that is shown with it."""

from dataclasses import dataclass

from soap.paper.claims import CLAIMS, Claim
from soap.paper.verdicts.ablations import ABLATIONS
from soap.paper.verdicts.betas import OF_BETAS
from soap.paper.verdicts.cost import COST
from soap.paper.verdicts.findings import Findings
from soap.paper.verdicts.numbers import PRINTED, Tables
from soap.paper.verdicts.parts import Check, Verdict
from soap.paper.verdicts.rivals import RIVALS
from soap.paper.verdicts.robustness import ROBUSTNESS
from soap.paper.verdicts.success import SUCCESS
from soap.paper.verdicts.tasks import SEEN

__all__ = ["OF_FIGURES", "OF_TABLES", "Findings", "Judged", "Verdict", "judge", "judge_all"]

OF_TABLES: dict[str, Check[Tables]] = {**RIVALS, **ROBUSTNESS, **SUCCESS}
"""Checks that need numbers of the tables alone, by the claim's name; the printed numbers are held against them, too."""

OF_FIGURES: dict[str, Check[Findings]] = {**SEEN, **OF_BETAS, **ABLATIONS, **COST}
"""Checks that need more, by the claim's name; the paper prints no numbers for these."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what became of it. printed: the verdict by the paper's own numbers; None where it prints none."""

    claim: Claim
    rule: str
    ours: Verdict
    printed: Verdict | None


def judge(claim: Claim, findings: Findings) -> Judged | None:
    """The claim held against what was measured; None for a description, which states nothing to check."""
    if claim.name in OF_TABLES:
        check = OF_TABLES[claim.name]
        return Judged(claim=claim, rule=check.rule, ours=check.judge(findings.tables), printed=check.judge(PRINTED))
    if claim.name in OF_FIGURES:
        further = OF_FIGURES[claim.name]
        return Judged(claim=claim, rule=further.rule, ours=further.judge(findings), printed=None)
    return None


def judge_all(findings: Findings) -> list[Judged]:
    """Every claim that can be checked, in the paper's order."""
    found = (judge(claim, findings) for claim in CLAIMS.values())
    return [judged for judged in found if judged is not None]
