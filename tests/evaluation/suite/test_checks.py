"""Every check on synthetic runs that it passes and that it does not."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import synthetic_runs
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.evaluation.checks import CHECKS, STATES, Evidence, Finding, judge_checks
from soap.evaluation.checks.gradients import EXACT_TEXT
from soap.evaluation.checks.sample_size import shortfalls
from soap.evaluation.protocols import DEFAULT_EFFORT, AttackPlan, Threat
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.summary import ProtocolResult, Summary, eight_bits
from soap.evaluation.summary_builder import read_summary

RANDOM = {"deterministic": False, "changed_labels": 3}
EOT: dict[str, Any] = {
    "random": True,
    "attack": "APGD()",
    "draws": 16,
    "images": 20,
    "broken": 1,
    "moved": 0.002,
    "error": 0.001,
}
NONE = {"purifier": False, "gradients": 0, "optimiser_steps": 0, "weights_changed": 0}
CUT = {"attacked": {"missing": 20, "not_finite": 0, "cross_entropy_zero": 20, "cut": True}}


def lost(missing: int = 0, bad: int = 0, flat: int = 0) -> dict[str, Any]:
    return {"missing": missing, "not_finite": bad, "cross_entropy_zero": flat, "cut": False}


def fact(name: str, **changed: Any) -> dict[str, Any]:
    return {"facts": {name: changed}}


def evidence(folder: RunFolder) -> Evidence:
    data = synthetic_runs.images()
    return Evidence(folder=folder, summary=read_summary(folder, data))


def findings(folder: RunFolder) -> list[Finding]:
    return judge_checks(folder, evidence(folder).summary)


def attempts(**effort: int) -> list[dict[str, Any]]:
    """The attempts of a plan with the names of the suite's, one for each protocol of a synthetic run."""
    plan = AttackPlan(
        threat=Threat(eps=synthetic_runs.EPS), effort=replace(DEFAULT_EFFORT, **effort), strongest="iterates",
        purifies=True, random=False,
    )  # fmt: skip
    planned = [plan.attempts(name)[0] for name in synthetic_runs.LEFT]
    return [{"protocol": one.protocol, "name": one.name, "attack": asdict(one.step)} for one in planned]


ALONE = {"purifies": False, "left": {"transfer": 5, "square": 9}}

# (check, its state, part of what it says, how the run differs from one that every check passes)
CASES: list[tuple[int, str, str, dict[str, Any]]] = [
    (1, "PASS", "1,200 images: linf at most 0.1", {}),
    (1, "PASS", "", {"shift": -0.1}),
    (1, "PASS", "", {"shift": 0.1 + 5e-7}),
    (1, "FAIL", "left the ball", {"shift": 0.1 + 3e-6}),
    (1, "FAIL", "left the ball", {"shift": 0.04, "norm": "l2"}),
    (1, "PASS", "", {"shift": 0.024, "norm": "l2"}),
    (1, "FAIL", "outside [0, 1]", {"pixel": 1.00001}),
    (1, "FAIL", "outside [0, 1]", {"pixel": -0.00001}),
    (1, "FAIL", "not finite", {"pixel": math.nan}),
    (1, "NOT RUN", "No attacked image", {"drop": tuple(synthetic_runs.LEFT)}),
    (2, "PASS", "-3 to 4 on 20 images", {}),
    (2, "FAIL", "probabilities", fact("outputs", probabilities=True)),
    (2, "FAIL", "NaN", fact("outputs", finite=False, low=None, high=None)),
    (3, "PASS", "0 of 20 labels change over 5 calls", {}),
    (3, "PASS", "average over draws", fact("determinism", **RANDOM) | {"random": True}),
    (3, "FAIL", "no attack took", fact("determinism", **RANDOM)),
    (3, "FAIL", "differ by 5 % where gradients are recorded", fact("determinism", with_gradients=0.05)),
    (3, "WARN", "like random numbers", fact("determinism", tiny_effect=0.9)),
    (4, "PASS", "straight-through, iterates, unrolled, surrogate attacked through it", {}),
    (4, "WARN", "no attack went through it", {"left": {"transfer": 9, "autoattack": 9}}),
    (4, "WARN", "no attack went through it: run straight-through", {"left": {"transfer": 9, "start": 9}}),
    (4, "WARN", "soap.Defence", fact("optimisation", **NONE | {"gradients": 1}) | {"left": {"transfer": 9}}),
    (4, "WARN", "", fact("optimisation", **NONE | {"optimiser_steps": 1}) | {"left": {"transfer": 9}}),
    (4, "WARN", "", fact("optimisation", **NONE | {"weights_changed": 1}) | {"left": {"transfer": 9}}),
    (4, "PASS", "does not optimise", fact("optimisation", **NONE) | {"left": {"transfer": 9}}),
    (5, "PASS", "0 of 20 images", {}),
    (5, "PASS", "7 by cross-entropy alone", fact("gradient", attacked=lost(flat=7))),
    (5, "FAIL", "1 of 20 images", fact("gradient", attacked=lost(missing=1))),
    (5, "FAIL", "1 of 20 images", fact("gradient", attacked=lost(bad=1))),
    (5, "FAIL", "2 of 20 images", fact("gradient", bare=lost(missing=2))),
    (5, "FAIL", "cut", fact("gradient", **CUT)),
    (6, "PASS", "error 1.0e-09 on 32 directions, float64", fact("optimisation", **NONE)),
    (6, "FAIL", "wrong direction", {"facts": {"differences": {"error": 0.01}, "optimisation": NONE}}),
    (6, "PASS", "", {"facts": {"differences": {"error": 0.01, "precision": "float32"}, "optimisation": NONE}}),
    (6, "PASS", "BPDA or surrogate", fact("differences", error=0.5)),
    (6, "FAIL", "wrong direction", fact("differences", rule=EXACT_TEXT, error=0.5)),
    (6, "PASS", "BPDA: the purifier", fact("differences", rule="BPDA: the purifier", whole=False)),
    (6, "FAIL", "wrong direction", fact("differences", rule="BPDA: the purifier", whole=False, error=0.5)),
    (6, "NOT RUN", "nothing to compare", fact("differences", error=None, directions=0)),
    (7, "PASS", "0 of 9", {}),
    (7, "WARN", "1 of 9 images", fact("best-iterate", lost=1)),
    (7, "PASS", "is random", fact("determinism", **RANDOM)),
    (8, "PASS", "0.00 points", {}),
    (8, "PASS", "0.49 points", fact("doubled-steps", moved=0.0049)),
    (8, "WARN", "iterations", fact("doubled-steps", moved=0.005)),
    (8, "PASS", "", fact("doubled-steps", moved=0.005, error=0.003)),
    (9, "PASS", "", fact("doubled-restarts", moved=0.0049)),
    (9, "WARN", "restarts", fact("doubled-restarts", moved=0.005)),
    (10, "PASS", "0.0 % at eps = 1", {}),
    (10, "FAIL", "5.0 %", fact("unbounded", standing=1)),
    (11, "PASS", "6 radii", {}),
    (11, "WARN", "rises by 10.0 % at eps = 3", fact("radii", accuracy=[1, 0.9, 0.5, 0.6, 0.2, 0.1, 0.0])),
    (11, "NOT RUN", "Only 2 radii", fact("radii", eps=[0, 1, 2], accuracy=[1, 0.5, 0.2])),
    (12, "PASS", "40.0 % after iterates, 60.0 % after one step", {}),
    (12, "PASS", "", fact("single-step", single=0.4)),
    (12, "FAIL", "One step breaks more", fact("single-step", single=0.35)),
    (13, "PASS", "35.0 % white-box, 55.0 % substitute and square", {}),
    (13, "FAIL", "gradient masking", {"left": {"straight-through": 9, "autoattack": 8, "square": 7}}),
    (
        13,
        "FAIL",
        "45.0 % white-box",
        {"left": {"straight-through": 9, "autoattack": 7, "square": 7}},
    ),  # it has Square, too
    (13, "PASS", "random points alone", {"left": {"straight-through": 9, "noise": 9}}),
    (13, "FAIL", "gradient masking", {"left": {"straight-through": 9, "noise": 8}}),
    (13, "NOT RUN", "", {"left": {"straight-through": 9}}),
    (14, "PASS", "35.0 % adaptive, 60.0 % transfer", {}),
    (14, "PASS", "", {"left": {"transfer": 7, "straight-through": 9, "unrolled": 7}}),
    (14, "FAIL", "gradient masking", {"left": {"transfer": 6, "straight-through": 9, "unrolled": 7}}),
    (14, "FAIL", "gradient masking", {"left": {"transfer": 6, "straight-through": 9, "start": 7}}),
    (14, "WARN", "45.0 % through the purifier", {"left": {"transfer": 7, "straight-through": 9, "start": 7}}),
    (14, "PASS", "", {"left": {"transfer": 9, "straight-through": 9, "start": 7}}),
    (14, "NOT RUN", "through the purifier", {"left": {"transfer": 9, "start": 7}}),
    (14, "PASS", "no purifier", ALONE),
    (14, "NOT RUN", "", {"left": {"transfer": 6}}),
    (15, "PASS", "gain +35.0 [+24.7, +43.9] points over the classifier's own worst case", {}),
    (15, "NOT RUN", "run classifier", {"left": {"transfer": 9, "iterates": 7}}),
    (15, "FAIL", "60.0 % of the clean images rejected", fact("cost", rejected=0.6)),
    (15, "PASS", "gain", fact("cost", rejected=0.05)),
    (15, "PASS", "17.0 forward and 11.0 backward passes an image (alone 1.0 and 0.0), 20.0 x", {}),
    (15, "PASS", "gain", {"bare_clean": 19}),
    (15, "WARN", "normalisation", {"bare_clean": 10}),
    (15, "PASS", "no purifier before", ALONE),
    (15, "PASS", "its own classifier", {"separable": False, **ALONE, **fact("optimisation", **NONE)}),
    (15, "NOT RUN", "classifier is unknown", {"separable": False, **ALONE}),
    (16, "PASS", "95.0 % of 20", {}),
    (16, "FAIL", "94.0 % of 50", fact("planted", planted=50, broken=47)),
    (17, "PASS", "100 images (0..99 of test); the worst case's interval is 18.4 points", {}),
    (17, "WARN", "steps 3 of 100; ", {"attempts": attempts(steps=3)}),
    (17, "WARN", "restarts 1 of 3; ", {"attempts": attempts(restarts=1)}),
    (17, "WARN", "queries 5 of 1000; ", {"attempts": attempts(queries=5)}),
    (17, "PASS", "100 images", {"attempts": attempts()}),
    (17, "PASS", "100 images", {"attempts": attempts(steps=30, queries=100, restarts=1), "suite": "quick"}),
    (17, "NOT RUN", "No protocol", {"drop": tuple(synthetic_runs.LEFT)}),
    (18, "PASS", "0 of 20 images differ", {}),
    (18, "PASS", "2 decisions in batches of 7 instead of 20", fact("repeat", different_decisions=2)),
    (18, "PASS", "1 decision in batches of 7 instead of 20", fact("repeat", different_decisions=1)),
    (18, "WARN", "same seed", fact("repeat", different_images=1)),
    (18, "WARN", "depends on the other images", fact("repeat", different_decisions=2, moved=0.1)),
    (18, "WARN", "3 of 20 clean images get another label", fact("repeat", different_labels=3)),
    (19, "PASS", "weights aaaaaaaaaaaa", {}),
    (19, "FAIL", "hashes", {"provenance": {**synthetic_runs.PROVENANCE, "data_sha256": "b" * 64}}),
    (19, "NOT RUN", "missing for unrolled", {"drop": ("unrolled",)}),
    (20, "PASS", "iterates; sign steps", {}),
    (20, "FAIL", "run exact", fact("strongest-rule", strongest="exact", exact=True)),
    (20, "WARN", "run iterates", {"left": {"transfer": 9, "straight-through": 9}}),
    (20, "PASS", "no purifier", fact("strongest-rule", strongest="defended", purifies=False) | ALONE),
    (21, "PASS", "deterministic", {}),
    (21, "PASS", "0.20 points (standard error 0.10) from 16 to 32 draws", fact("eot", **EOT)),
    (21, "WARN", "larger number of draws", fact("eot", **EOT | {"moved": 0.006})),
    (21, "PASS", "", fact("eot", **EOT | {"moved": 0.006, "error": 0.004})),
    (21, "FAIL", "a single draw", fact("eot", **EOT | {"draws": 1})),
    (22, "PASS", "35.0 % by gradients, 60.0 % by decision, 50.0 % by surrogate", {}),
    (22, "FAIL", "Labels alone", {"left": {"straight-through": 9, "decision": 8}}),
    (22, "WARN", "imitation", {"left": {"straight-through": 9, "surrogate": 8}}),
    (22, "NOT RUN", "", {"left": {"straight-through": 9}}),
]


def test_the_usual_effort_is_that_for_the_classes_of_the_plan(tmp_path):
    """Three classes have an attack, "targeted margin", that ten classes do not have."""
    few = AttackPlan(
        threat=Threat(eps=synthetic_runs.EPS), effort=replace(DEFAULT_EFFORT, steps=7), strongest="iterates",
        purifies=True, random=False, classes=3,
    )  # fmt: skip
    last = few.attempts("iterates")[-1]
    assert last.name == "apgd targeted margin"
    own = [{"protocol": last.protocol, "name": last.name, "attack": asdict(last.step)}]
    folder = synthetic_runs.run(tmp_path, left={"iterates": 8}, attempts=own, classes=["a", "b", "c"])
    assert shortfalls(folder.plan()) == {"steps": (7, 100)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], RunFolder]:
    """Runs by what sets them apart but for facts, each written once."""
    known: dict[str, RunFolder] = {}

    def of(differs: dict[str, Any]) -> RunFolder:
        rest = {name: value for name, value in differs.items() if name != "facts"}
        if repr(rest) not in known:
            known[repr(rest)] = synthetic_runs.run(tmp_path_factory.mktemp("run"), **rest)
        return known[repr(rest)]

    return of


@pytest.mark.parametrize(("number", "state", "part", "differs"), CASES)
def test_check_on_a_synthetic_run(number, state, part, differs, runs):
    folder, facts = runs(differs), differs.get("facts", {})
    synthetic_runs.note(folder, facts)
    try:
        found = CHECKS[number].finding(evidence(folder))
    finally:
        synthetic_runs.note(folder, {name: {} for name in facts})
    assert found.state == state, found
    assert part in f"{found.measured} {found.meaning}", found


@pytest.mark.parametrize(
    ("changed", "state", "said"),
    [
        ({"commit": None}, "WARN", "commit is not known"),
        ({"device": ""}, "WARN", "Not stated: device"),
        ({"weights_sha256": "short"}, "FAIL", "is unknown which"),
    ],
)
def test_provenance_that_lacks_something(changed, state, said, tmp_path):
    provenance = {**synthetic_runs.PROVENANCE, "data_sha256": synthetic_runs.images().sha256, **changed}
    found = findings(synthetic_runs.run(tmp_path, provenance=provenance))[18]
    assert (found.number, found.state) == (19, state)
    assert said in found.meaning


def test_each_of_the_twenty_two_checks_is_tested_with_and_without_objection():
    assert list(CHECKS) == list(range(1, 23))
    assert len({check.name for check in CHECKS.values()}) == 22
    tried = {number: {state for case, state, *_ in CASES if case == number} for number in CHECKS}
    assert all("PASS" in states and states & {"WARN", "FAIL", "NOT RUN"} for states in tried.values())
    assert all(states <= set(STATES) for states in tried.values())


@pytest.mark.parametrize(
    ("fact", "state", "said"),
    [
        (None, "NOT RUN", "is missing: run the full suite"),
        ({"problem": "nothing moves", "impossible": True}, "NOT RUN", "does not apply: nothing moves."),
        ({"problem": "RuntimeError: broken", "impossible": False}, "WARN", "raised an error: RuntimeError: broken"),
    ],
)
def test_missing_and_failed_measurements_become_findings(fact, state, said, tmp_path):
    read = {number: check.measurements[0].fact for number, check in CHECKS.items() if check.measurements}
    folder = synthetic_runs.run(tmp_path, facts=dict.fromkeys(read.values(), fact))
    found = {one.number: one for one in findings(folder)}
    assert set(found) - set(read) == {1, 13, 14, 17, 19, 22}  # these need no measurement
    for number in read:
        assert found[number].state == state
        assert said in found[number].meaning


@given(st.lists(st.tuples(st.integers(0, 255), st.floats(0, 1)), min_size=1, max_size=50))
@settings(max_examples=60)
def test_rounding_to_eight_bits_never_increases_the_distance(pairs):
    clean = np.array([[byte / 255 for byte, _ in pairs]])
    x = np.array([[value for _, value in pairs]])
    rounded = eight_bits(x, clean)
    assert np.allclose(rounded * 255, np.rint(rounded * 255))
    assert np.all(np.abs(rounded - clean) <= np.abs(x - clean) + 1e-6)
    assert np.all(np.abs(rounded - x) < 1 / 255)


@pytest.mark.parametrize(
    ("number", "knowing", "state"),
    [(13, 401, "PASS"), (13, 403, "FAIL"), (14, 400, "PASS"), (14, 401, "WARN"), (14, 403, "FAIL")],
)
def test_attacker_knowledge_tolerates_a_fifth_of_a_point(number, knowing, state, tmp_path):
    """The other protocol, square or transfer, leaves 400."""

    def line(protocol: str, standing: int) -> ProtocolResult:
        return ProtocolResult(protocol=protocol, defended=np.arange(1000) < standing, bare=None, seconds=0.0)

    lines = (line("straight-through", knowing), line("square" if number == 13 else "transfer", 400))
    everything = line("clean", 1000)
    summary = Summary(plan={"purifies": True, "random": False}, clean=everything, protocols=lines, worst=lines[0])
    given = Evidence(folder=RunFolder(tmp_path), summary=summary)
    assert CHECKS[number].finding(given).state == state
