"""Verdicts on the paper's claims: computed from measurements by a rule, and how they are worded."""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.paper.claims.attack_success import SUCCESS
from soap.paper.claims.auxiliary_tasks import AUXILIARY_TASKS
from soap.paper.claims.checks import ClaimCheck, ClaimEvidence, ClaimVerdict, TableNumbers
from soap.paper.claims.rivals import RIVALS
from soap.paper.claims.robustness import ROBUSTNESS
from soap.paper.claims.sweeps import SWEEP_CLAIMS
from soap.paper.claims.table_numbers import PRINTED
from soap.paper.claims.texts import CLAIMS, Claim
from soap.paper.claims.training_cost import COST
from soap.paper.comparison import SIGNS, Comparison, Entry, display_name
from soap.paper.epoch_times import epoch_seconds
from soap.paper.figure_data import FigureData

TABLE_CHECKS: dict[str, ClaimCheck[TableNumbers]] = {**RIVALS, **ROBUSTNESS, **SUCCESS}
"""Checks that need numbers of the tables only, by claim; they are applied to the printed numbers as well."""

FIGURE_CHECKS: dict[str, ClaimCheck[ClaimEvidence]] = {**AUXILIARY_TASKS, **SWEEP_CLAIMS, **COST}
"""Checks that need other measurements, by claim; the paper prints no numbers for these."""

VERDICT_WORDS: dict[bool | None, str] = {False: "did not hold", True: "held", None: "not decided"}
"""Verdicts in display order."""
MARKS: dict[bool | None, str] = {False: "✗", True: "✓", None: "○"}

TITLE = "What the paper claims, and what held"
READING = (
    "Claims of the paper's text in our words, each checked by the rule below it: against our numbers, and against the "
    "numbers that the paper prints itself. A claim holds where all of it holds, and does not where part of it fails; "
    "what fails only for a network that was trained for fewer epochs than its recipe's decides nothing. "
    "The rules are ours, since the text seldom says how much it means, and were written with part of the numbers known."
)


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim and its verdicts. printed: by the paper's own numbers; None if it prints none."""

    claim: Claim
    rule: str
    ours: ClaimVerdict
    printed: ClaimVerdict | None

    @property
    def source(self) -> str:
        """'section 4.1; Table 1, Table 2'."""
        return f"{self.claim.place}; {', '.join(map(display_name, self.claim.about))}"

    @property
    def printed_text(self) -> str:
        """The verdict by the paper's own numbers, as text."""
        if self.printed is None:
            return "no numbers printed"
        against = self.printed.against
        return VERDICT_WORDS[self.printed.held] + (f": {against}" if against else "")


def evidence_from(entries: Sequence[Entry], figure_data: FigureData) -> ClaimEvidence:
    """All that claims are judged by: every table with our numbers in it, and what figures are drawn from."""
    tables = {entry.table.name: entry.cells for entry in entries if isinstance(entry, Comparison)}
    return ClaimEvidence(tables=tables, seconds=epoch_seconds(figure_data.timings), figure_data=figure_data)


def judge(claim: Claim, evidence: ClaimEvidence) -> JudgedClaim | None:
    """The claim with its verdicts; None for a description, which states nothing to check."""
    if claim.name in TABLE_CHECKS:
        check = TABLE_CHECKS[claim.name]
        ours, printed = check.judge(evidence.tables), check.judge(PRINTED)
        return JudgedClaim(claim=claim, rule=check.rule, ours=ours, printed=printed)
    if claim.name in FIGURE_CHECKS:
        further = FIGURE_CHECKS[claim.name]
        return JudgedClaim(claim=claim, rule=further.rule, ours=further.judge(evidence), printed=None)
    return None


def judge_all(evidence: ClaimEvidence) -> list[JudgedClaim]:
    """Every claim that can be checked, in the paper's order."""
    found = (judge(claim, evidence) for claim in CLAIMS.values())
    return [judged for judged in found if judged is not None]


def grouped_by_verdict(judged: Sequence[JudgedClaim]) -> dict[bool | None, list[JudgedClaim]]:
    """The claims by verdict, those that did not hold first."""
    return {held: [one for one in judged if one.ours.held is held] for held in VERDICT_WORDS}


def count_text(judged: Sequence[JudgedClaim]) -> str:
    """'3 did not hold, 5 held, 20 not decided'."""
    return ", ".join(f"{len(own)} {VERDICT_WORDS[held]}" for held, own in grouped_by_verdict(judged).items())


def signs_text(judged: Sequence[JudgedClaim]) -> str:
    """The meaning of the signs that follow our numbers in the evidence."""
    shown = " ".join(one.ours.evidence for one in judged)
    return "; ".join(f"{sign} {words}" for sign, words in SIGNS.items() if sign in shown)
