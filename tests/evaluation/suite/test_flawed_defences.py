"""Twenty planted flaws: each is found by the intended check, and by no other."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from flaws import FLAWS, Flaw
from further_flaws import FURTHER_FLAWS
from small_nets import Judged, judge, quick_and

from soap._runtime.isolation import preserved_random_state
from soap.evaluation import verdict
from soap.evaluation.plan import NOT_PROBED
from soap.evaluation.verdict import INVALID, PASSED, WARNED

ALL_FLAWS = (*FLAWS, *FURTHER_FLAWS)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flaw], Judged]:
    @cache
    def of(flaw: Flaw) -> Judged:
        defence, out = flaw.defence(), Path(tmp_path_factory.mktemp("run"))
        planned, measurements, data = flaw.planned(defence, flaw.threat), quick_and(flaw.check), flaw.data()
        probe = defence.probe(data.x) if flaw.tried else NOT_PROBED
        with preserved_random_state():
            torch.manual_seed(0)  # some of the flaws draw from the global state
            return judge(
                defence, out, planned=planned, measurements=measurements, data=data, threat=flaw.threat, probe=probe
            )

    return of


def named(flaw: Flaw) -> str:
    return flaw.name


def test_there_are_twenty_flaws():
    assert len({flaw.name for flaw in ALL_FLAWS}) == 20


@pytest.mark.parametrize("flaw", ALL_FLAWS, ids=named)
def test_a_flaw_is_flagged_by_its_check(flaw, judged):
    run = judged(flaw)
    states = {finding.number: finding.state for finding in run.findings()}
    assert states[flaw.check] == flaw.state, run.flagged()
    found = verdict.judge(run.findings(without=frozenset({17})), run.summary)
    assert found.name == (INVALID if flaw.state == "FAIL" else WARNED) != PASSED
    assert found.reasons[0].startswith(f"check {flaw.check},")


@pytest.mark.parametrize("flaw", ALL_FLAWS, ids=named)
def test_a_flaw_is_not_flagged_by_other_checks(flaw, judged):
    run = judged(flaw)
    assert run.flagged(without=frozenset({flaw.check})) == {}
