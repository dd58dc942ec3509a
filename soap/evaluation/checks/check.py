"""The checks by number, each a function of a run's files alone: no model is asked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from soap.data import Dataset
from soap.evaluation.adaptive.checks.finding import FAIL, NOT_RUN, PASS, WARN, Finding
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.summary import Summary, summarise


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a check may look at: the run's files, the images it was made on, and its figures."""

    folder: RunFolder
    data: Dataset

    @cached_property
    def summary(self) -> Summary:
        """The run's figures."""
        return summarise(self.folder, self.data)

    @property
    def plan(self) -> Mapping[str, Any]:
        """What run.json holds."""
        return self.summary.plan

    def fact(self, name: str) -> dict[str, Any]:
        """What a probe found; an error of this file where it was not made, or could not be."""
        found = self.folder.fact(name)
        if found is None:
            raise UnmeasuredError(f"The probe {name!r} was not made: run the full suite to its end.")
        if "problem" in found and found["impossible"]:
            raise UnmeasuredError(f"The probe {name!r} has nothing to measure: {found['problem']}.")
        if "problem" in found:
            raise UnmeasurableError(found["problem"])
        fact: dict[str, Any] = found
        return fact


class UnmeasuredError(Exception):
    """A probe was not made: the suite leaves it out, the run was stopped before it, or there is nothing to measure."""


class UnmeasurableError(Exception):
    """A probe was tried and met an error."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A finding, but for the number and name of its check."""

    state: str
    figure: str
    said: str


def passed(figure: str, said: str) -> Answer:
    """PASS."""
    return Answer(state=PASS, figure=figure, said=said)


def warned(figure: str, said: str) -> Answer:
    """WARN: the figure is no more than an upper bound."""
    return Answer(state=WARN, figure=figure, said=said)


def failed(figure: str, said: str) -> Answer:
    """FAIL: the figure says nothing about robustness."""
    return Answer(state=FAIL, figure=figure, said=said)


def not_run(said: str) -> Answer:
    """NOT RUN."""
    return Answer(state=NOT_RUN, figure="not measured", said=said)


Asks = Callable[[Evidence], Answer]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One of the checks of a run."""

    number: int
    name: str
    ask: Asks

    @property
    def page(self) -> str:
        """Its paragraph's file under docs/checks/."""
        words = re.findall(r"[a-z0-9]+", self.name.lower())
        return f"{self.number:02d}-{'-'.join(words)}.md"

    def finding(self, evidence: Evidence) -> Finding:
        """Its answer; what was not or could not be measured is an answer, too."""
        try:
            answer = self.ask(evidence)
        except UnmeasuredError as missing:
            answer = not_run(str(missing))
        except UnmeasurableError as problem:
            answer = warned("could not be measured", f"The probe met an error: {problem}")
        return Finding(number=self.number, name=self.name, state=answer.state, figure=answer.figure, said=answer.said)


CHECKS: dict[int, Check] = {}
"""All of them; importing soap.evaluation.adaptive.checks fills it."""


def check(number: int, name: str) -> Callable[[Asks], Asks]:
    """Register a function as the check of that number."""

    def register(ask: Asks) -> Asks:
        CHECKS[number] = Check(number=number, name=name, ask=ask)
        return ask

    return register


def points(share: float) -> str:
    """A share in [0, 1] as per cent with one decimal."""
    return f"{100 * share:.1f} %"
