"""What became of the paper's claims, in words; `soap.paper`, which judges them, is another room of the same layer."""
# ruff: noqa: D102

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from soap.report.comparison import SIGNS


@runtime_checkable
class Claim(Protocol):
    """A claim of the paper's text."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def about(self) -> tuple[str, ...]: ...


@runtime_checkable
class Verdict(Protocol):
    """Whether it held, and by which numbers: by what they say, as a text, and those against it alone."""

    @property
    def held(self) -> bool | None: ...
    @property
    def against(self) -> str: ...
    @property
    def told(self) -> Mapping[str, str]: ...
    @property
    def evidence(self) -> str: ...


@runtime_checkable
class Judged(Protocol):
    """A claim, the rule it is checked by, the verdict by our numbers and by the paper's own where it prints some."""

    @property
    def claim(self) -> Claim: ...
    @property
    def rule(self) -> str: ...
    @property
    def ours(self) -> Verdict: ...
    @property
    def printed(self) -> Verdict | None: ...


WORDS: dict[bool | None, str] = {False: "did not hold", True: "held", None: "not decided"}
"""Verdicts in the order in which they are told."""
MARKS: dict[bool | None, str] = {False: "✗", True: "✓", None: "○"}

TITLE = "What the paper claims, and what held"
READING = (
    "Claims of the paper's text in our words, each checked by the rule below it: against our numbers, and against the "
    "numbers that the paper prints itself. A claim holds where all of it holds, and does not where part of it fails; "
    "what fails only for a network that was trained for fewer epochs than its recipe's decides nothing. "
    "The rules are ours, since the text seldom says how much it means, and were written with part of the numbers known."
)


def grouped(judged: Sequence[Judged]) -> dict[bool | None, list[Judged]]:
    """The claims by verdict, those that did not hold first."""
    return {held: [one for one in judged if one.ours.held is held] for held in WORDS}


def counted(judged: Sequence[Judged]) -> str:
    """'3 did not hold, 5 held, 20 not decided'."""
    return ", ".join(f"{len(own)} {WORDS[held]}" for held, own in grouped(judged).items())


def subject(name: str) -> str:
    """'Table 1' of 'table-1'."""
    return name.replace("-", " ").capitalize()


def source(claim: Claim) -> str:
    """'section 4.1; Table 1, Table 2'."""
    return f"{claim.place}; {', '.join(map(subject, claim.about))}"


def by_the_paper(judged: Judged) -> str:
    """What the paper's own numbers say."""
    if judged.printed is None:
        return "no numbers printed"
    against = judged.printed.against
    return WORDS[judged.printed.held] + (f": {against}" if against else "")


def signs_in(judged: Sequence[Judged]) -> str:
    """The signs that stand behind numbers of ours, spelt out."""
    shown = " ".join(one.ours.evidence for one in judged)
    return "; ".join(f"{sign} {words}" for sign, words in SIGNS.items() if sign in shown)
