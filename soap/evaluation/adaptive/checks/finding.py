"""What a check found."""

from dataclasses import dataclass

PASS, WARN, FAIL, NOT_RUN = "PASS", "WARN", "FAIL", "NOT RUN"
STATES = (PASS, WARN, FAIL, NOT_RUN)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A check's answer. state: one of `STATES`; figure: what it measured, short; said: what that means, one sentence.

    NOT RUN says that what the check needs was not measured: the suite is then incomplete.
    """

    number: int
    name: str
    state: str
    figure: str
    said: str
