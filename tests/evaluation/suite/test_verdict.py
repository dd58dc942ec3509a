"""The verdict and the headline of a run."""

import pytest
import synthetic_runs

from soap.evaluation.checks import FAIL, PASS, Finding, judge_checks
from soap.evaluation.plan import NO_ITERATES, NO_PURIFIER
from soap.evaluation.protocols import RULES
from soap.evaluation.summary_builder import read_summary
from soap.evaluation.verdict import INVALID, PASSED, WARNED, RobustnessVerdict, headline, judge, missing_protocols

NO_STEPS = {**synthetic_runs.LEFT_OUT, **dict.fromkeys(("iterates", "unrolled"), NO_ITERATES)}
NO_PURIFIER = dict.fromkeys((*RULES, "classifier"), NO_PURIFIER)
NO_STEP_FACTS = {"strongest-rule": {"strongest": "straight-through"}}
PLAIN = {
    "purifies": False,
    "left_out": NO_PURIFIER,
    "facts": {"optimisation": {"purifier": False, "gradients": 0}, "strongest-rule": {"purifies": False}},
}


def test_a_failed_check_hides_accuracies_under_attack():
    passed, invalid = (RobustnessVerdict(name=name, reasons=("check 2, x: 3",)) for name in (PASSED, INVALID))
    for protocol in ("clean", "transfer", "worst"):
        assert passed.shows(protocol)
        assert invalid.shows(protocol) == (protocol == "clean")
    assert passed.note == ""
    why = "No accuracy under attack is shown, because a check failed (check 2, x: 3)"
    assert invalid.note == f"{why}; the raw data stay in the run folder."
    failed, held = (Finding(number=2, name="x", state=state, measured="3", meaning="") for state in (FAIL, PASS))
    assert [passed.measured(failed), passed.measured(held)] == ["3", "3"]
    assert [invalid.measured(failed), invalid.measured(held)] == ["3", None]


def without(*names: str) -> dict[str, int]:
    return {name: standing for name, standing in synthetic_runs.LEFT.items() if name not in names}


@pytest.mark.parametrize(
    ("differs", "name", "reason"),
    [
        ({}, PASSED, None),
        ({"left": without("noise")}, PASSED, None),
        ({"left": without("start")}, PASSED, None),
        ({"facts": {"doubled-steps": {"moved": 0.01}}}, WARNED, "check 8, converged: accuracy moves by 1.00 points"),
        ({"facts": {"doubled-steps": None}}, WARNED, "check 8, converged: not measured"),
        ({"facts": {"planted": {"broken": 10}}}, INVALID, "check 16, planted weakness found: 50.0 %"),
        ({"left": without("autoattack")}, WARNED, "autoattack was not run"),
        ({"left": without("unrolled")}, WARNED, "unrolled was not run"),
        ({"left": without("iterates", "unrolled"), "left_out": NO_STEPS, "facts": NO_STEP_FACTS}, PASSED, None),
        ({"drop": ("square",)}, WARNED, "square was not run"),
        ({"left": {"transfer": 12}}, WARNED, "check 4, optimisation at inference"),
        ({"left": {**without(*NO_PURIFIER), "square": 12}, **PLAIN}, PASSED, None),
        ({"left": without(*NO_PURIFIER, "square"), **PLAIN}, WARNED, "square was not run"),
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
        "straight-through", "iterates", "unrolled", "surrogate", "autoattack", "substitute", "square", "decision",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (RobustnessVerdict(name=PASSED, reasons=()), "worst 35.0 % [26.4, 44.7] of 100 images: CHECKS PASSED"),
        (RobustnessVerdict(name=WARNED, reasons=("a",)), "worst 35.0 % [26.4, 44.7] of 100 images: CHECKS WARNED (a)"),
        (
            RobustnessVerdict(name=INVALID, reasons=("a", "b", "c")),
            "no accuracy of 100 images: INVALID (a; and 2 more)",
        ),
    ],
)
def test_headline(verdict, line, tmp_path):
    assert headline(read_summary(synthetic_runs.run(tmp_path), synthetic_runs.images()), verdict) == line
