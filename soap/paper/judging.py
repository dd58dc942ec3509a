"""Verdicts on the paper's claims: computed from measurements by a rule, and how they are worded."""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.paper.claims import CLAIMS, PRINTED, Claim, ClaimVerdict, table_parts
from soap.paper.comparison import SIGNS, Comparison, Entry, display_name
from soap.paper.figure_claims import FIGURE_CHECKS, figure_parts
from soap.paper.figure_data import FigureData

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


def judge(claim: Claim, entries: Sequence[Entry], data: FigureData) -> JudgedClaim | None:
    """The claim with its verdicts by our tables and figures; None for a description, which states nothing to check."""
    if claim.name in FIGURE_CHECKS:
        return JudgedClaim(claim=claim, ours=ClaimVerdict(tuple(figure_parts(claim.name, data))), printed=None)
    if not claim.numbers:
        return None
    tables = {entry.table.name: entry.cells for entry in entries if isinstance(entry, Comparison)}
    ours, printed = (ClaimVerdict(tuple(table_parts(claim, numbers))) for numbers in (tables, PRINTED))
    return JudgedClaim(claim=claim, ours=ours, printed=printed)


def judge_all(entries: Sequence[Entry], data: FigureData) -> list[JudgedClaim]:
    """Every claim that can be checked, in the paper's order."""
    found = (judge(claim, entries, data) for claim in CLAIMS.values())
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
