"""What all checks share: findings, the evidence they judge, and measurements stored as facts of a run.

A file holds one check, or checks of the same subject. Where a run's batches are not enough, it defines a typed record,
the function that measures it, and a `Measurement`; a `judge` function turns the evidence into a judgement.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, TypeVar

from soap._files.records import read_record
from soap.evaluation.checks.context import ImpossibleError, MeasurementContext
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.summary import Summary

PASS, WARN, FAIL, NOT_RUN = STATES = ("PASS", "WARN", "FAIL", "NOT RUN")

Judgement = tuple[str, str, str]
"""State, measured and meaning of a `Finding`."""

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of a check. state: one of `STATES`; measured: the numbers, short; meaning: one sentence.

    PASS: no objection. WARN: the accuracy is an upper bound only. FAIL: the accuracy does not measure robustness.
    NOT RUN: what the check needs was not measured, so the suite is incomplete.
    """

    number: int
    name: str
    state: str
    measured: str
    meaning: str


class NotMeasuredError(Exception):
    """A measurement is missing: not in the suite, not reached before a stop, or not applicable to the defence.

    failed: whether the measurement raised an error.
    """

    def __init__(self, meaning: str, *, failed: bool = False) -> None:
        super().__init__(meaning)
        self.failed = failed


@dataclass(frozen=True)
class Measurement(Generic[Record]):
    """A measurement that a check needs. fact: its file in the run folder. record: the dataclass it returns.

    quick: whether it is cheap enough for the quick suite.
    """

    fact: str
    record: type[Record]
    measure: Callable[[MeasurementContext], Record]
    quick: bool = True

    def read(self, fact: Mapping[str, Any]) -> Record:
        """The record of a stored fact; entries that the record does not have are ignored."""
        names = {each.name for each in fields(self.record)}  # type: ignore[arg-type]
        return read_record(self.record, {name: fact[name] for name in fact.keys() & names})

    def fact_content(self, context: MeasurementContext) -> dict[str, Any]:
        """Measure, and return the content of the fact: the record, or the problem that prevented it."""
        try:
            if len(context.x) == 0:
                raise ImpossibleError("the defence classifies no clean image correctly")
            found: Any = self.measure(context)
            return asdict(found)
        except ImpossibleError as reason:
            return {"problem": str(reason), "impossible": True}
        except Exception as problem:  # a user's model may raise anything; the run reports it and goes on
            return {"problem": f"{type(problem).__name__}: {problem}", "impossible": False}


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a check may use: the files and the results of the run."""

    folder: RunFolder
    summary: Summary

    @property
    def plan(self) -> Mapping[str, Any]:
        """The content of run.json."""
        return self.summary.plan

    def record(self, measurement: Measurement[Record]) -> Record:
        """The record of a measurement; NotMeasuredError where it is missing or failed."""
        found = self.folder.read_fact(measurement.fact)
        if found is None:
            raise NotMeasuredError(f"The measurement {measurement.fact!r} is missing: run the full suite to its end.")
        if "problem" in found and found["impossible"]:
            raise NotMeasuredError(f"The measurement {measurement.fact!r} does not apply: {found['problem']}.")
        if "problem" in found:
            raise NotMeasuredError(f"The measurement raised an error: {found['problem']}", failed=True)
        return measurement.read(found)


@dataclass(frozen=True)
class Check:
    """One of the checks of a run."""

    number: int
    name: str
    judge: Callable[[Evidence], Judgement]
    measurements: tuple[Measurement[Any], ...] = ()

    @property
    def page(self) -> str:
        """The file of its page under docs/checks/."""
        return f"{self.number:02d}-{'-'.join(re.findall(r'[a-z0-9]+', self.name.lower()))}.md"

    def finding(self, evidence: Evidence) -> Finding:
        """The finding of the check, also where its measurement is missing or failed."""
        try:
            state, measured, meaning = self.judge(evidence)
        except NotMeasuredError as missing:
            state, measured = (WARN, "could not be measured") if missing.failed else (NOT_RUN, "not measured")
            meaning = str(missing)
        return Finding(number=self.number, name=self.name, state=state, measured=measured, meaning=meaning)


def percent(share: float) -> str:
    """A share in [0, 1] as per cent with one decimal."""
    return f"{100 * share:.1f} %"
