"""The verdict and the headline of a run."""

import pytest
import synthetic_runs

from soap.evaluation.checks import judge_checks
from soap.evaluation.plan import NO_ITERATES, NO_PURIFIER
from soap.evaluation.summary import read_summary
from soap.evaluation.verdict import NOTHING, TRUSTED, UPPER, RobustnessVerdict, headline, judge, missing_protocols

NO_STEPS = dict.fromkeys(("bpda-trajectory", "unrolled"), NO_ITERATES)
NO_PURIFIER = dict.fromkeys(("bpda", "bpda-start", "bpda-trajectory", "unrolled"), NO_PURIFIER)
PLAIN = {"purifies": False, "left_out": NO_PURIFIER, "facts": {"optimisation": {"purifier": False, "gradients": 0}}}


def without(*names: str) -> dict[str, int]:
    return {name: standing for name, standing in synthetic_runs.LEFT.items() if name not in names}


@pytest.mark.parametrize(
    ("differs", "name", "reason"),
    [
        ({}, TRUSTED, None),
        ({"left": without("noise")}, TRUSTED, None),
        ({"left": without("bpda-start")}, TRUSTED, None),
        ({"facts": {"doubled-steps": {"moved": 0.01}}}, UPPER, "check 8, converged: accuracy moves by 1.00 points"),
        ({"facts": {"doubled-steps": None}}, UPPER, "check 8, converged: not measured"),
        ({"facts": {"planted": {"broken": 10}}}, NOTHING, "check 16, planted weakness found: 50.0 %"),
        ({"left": without("autoattack")}, UPPER, "autoattack was not run"),
        ({"left": without("unrolled")}, UPPER, "unrolled was not run"),
        ({"left": without("bpda-trajectory", "unrolled"), "left_out": NO_STEPS}, TRUSTED, None),
        ({"drop": ("black-box",)}, UPPER, "black-box was not run"),
        ({"left": {"transfer": 12}}, UPPER, "check 4, optimisation at inference"),
        ({"left": {**without(*NO_PURIFIER), "black-box": 12}, **PLAIN}, TRUSTED, None),
        ({"left": without(*NO_PURIFIER, "black-box"), **PLAIN}, UPPER, "black-box was not run"),
    ],
)
def test_verdict(differs, name, reason, tmp_path):
    folder, data = synthetic_runs.run(tmp_path, **differs), synthetic_runs.images()
    summary = read_summary(folder, data)
    found = judge(judge_checks(folder, summary), summary)
    assert found.name == name, found
    assert (found.reasons == ()) == (reason is None)
    assert reason is None or found.reasons[0].startswith(reason)


def test_missing_protocols_are_named(tmp_path):
    folder, data = synthetic_runs.run(tmp_path, left={"transfer": 12}), synthetic_runs.images()
    assert missing_protocols(read_summary(folder, data)) == [
        "bpda", "bpda-trajectory", "unrolled", "autoattack", "black-box",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (RobustnessVerdict(name=TRUSTED, reasons=()), "worst 35.0 % [18.1, 56.7] of 20 images: TRUSTED BOUND"),
        (RobustnessVerdict(name=UPPER, reasons=("a",)), "worst 35.0 % [18.1, 56.7] of 20 images: UPPER BOUND ONLY (a)"),
        (
            RobustnessVerdict(name=NOTHING, reasons=("a", "b", "c")),
            "no accuracy of 20 images: NOT A ROBUSTNESS NUMBER (a; and 2 more)",
        ),
    ],
)
def test_headline(verdict, line, tmp_path):
    assert headline(read_summary(synthetic_runs.run(tmp_path), synthetic_runs.images()), verdict) == line
