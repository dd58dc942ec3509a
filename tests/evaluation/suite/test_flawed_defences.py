"""Ten planted flaws: each is found by the check that should find it, and by no other."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from flaws import FLAWS, Flaw
from small_nets import Judged, judge, quick_and

from soap._runtime.isolation import preserved_random_state
from soap.evaluation.adaptive.verdict import NOTHING, TRUSTED, UPPER, verdict


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flaw], Judged]:
    @cache
    def of(flaw: Flaw) -> Judged:
        target, out = flaw.target(), Path(tmp_path_factory.mktemp("run"))
        planned, probes = flaw.planned(target), quick_and(flaw.check)
        with preserved_random_state():
            torch.manual_seed(0)  # one of the flaws draws from the global state
            return judge(target, out, planned=planned, probes=probes, data=flaw.data())

    return of


def named(flaw: Flaw) -> str:
    return flaw.name


def test_there_are_ten():
    assert len({flaw.name for flaw in FLAWS}) == 10


@pytest.mark.parametrize("flaw", FLAWS, ids=named)
def test_a_flaw_is_flagged_by_its_check(flaw, judged):
    run = judged(flaw)
    states = {finding.number: finding.state for finding in run.findings()}
    assert states[flaw.check] == flaw.state, run.flagged()
    spoken = verdict(run.findings(), run.summary)
    assert spoken.name == (NOTHING if flaw.state == "FAIL" else UPPER) != TRUSTED
    assert spoken.reasons[0].startswith(f"check {flaw.check},")


@pytest.mark.parametrize("flaw", FLAWS, ids=named)
def test_without_that_check_it_goes_unflagged(flaw, judged):
    run = judged(flaw)
    assert run.flagged(without=frozenset({flaw.check})) == {}
    assert all(finding.number != flaw.check for finding in run.findings(without=frozenset({flaw.check})))
