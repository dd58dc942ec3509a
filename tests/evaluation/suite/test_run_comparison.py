"""Comparison of two runs: counts, intervals and p values against known values; runs that cannot be compared."""

import math
import sys
import types
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import small_runs
import synthetic_runs
from hypothesis import given
from hypothesis import strategies as st
from small_runs import change_json

import soap
from soap.errors import FileError, InputError
from soap.evaluation import ProtocolComparison, compare_runs, read_report
from soap.evaluation.paired import mcnemar_p_value, paired_difference
from soap.evaluation.run_folder import FINGERPRINTS
from soap.evaluation.verdict import INVALID, RobustnessVerdict

COUNTS = st.integers(0, 400)
FIRST, SECOND, THIRD, *_, LAST = synthetic_runs.LEFT


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (0, 1, 1.0),
        (0, 6, 2 / 64),
        (1, 9, 22 / 1024),  # 2 (1 + 10) / 2^10
        (3, 3, 1.0),
        (5, 16, 2 * (1 + 21 + 210 + 1330 + 5985 + 20349) / 2**21),
    ],
)
def test_mcnemar_by_hand(only_a, only_b, p):
    assert mcnemar_p_value(only_a, only_b) == p == mcnemar_p_value(only_b, only_a)


@given(only_a=COUNTS, only_b=COUNTS)
def test_mcnemar_equals_the_binomial_test_of_scipy(only_a, only_b):
    stats = pytest.importorskip("scipy.stats")
    total = only_a + only_b
    wanted = stats.binomtest(only_a, total).pvalue if total else 1.0
    assert mcnemar_p_value(only_a, only_b) == pytest.approx(wanted, rel=1e-9, abs=1e-300)


def test_mcnemar_of_many_images_is_a_number():
    assert mcnemar_p_value(0, 10_000) == 0.0  # 2^-9999 is below the smallest float
    assert mcnemar_p_value(5_000, 5_000) == 1.0
    assert mcnemar_p_value(4_900, 5_100) == pytest.approx(math.erfc(199 / 100 / math.sqrt(2)), rel=0.01)


@pytest.fixture
def runs(tmp_path):
    """Two complete runs; b lacks the last protocol, and other images survive the second and the third."""
    left = {**synthetic_runs.LEFT, SECOND: synthetic_runs.LEFT[SECOND] + 3, THIRD: synthetic_runs.LEFT[THIRD] - 5}
    del left[LAST]
    a = synthetic_runs.run(tmp_path / "a", weights_sha256="a" * 64)
    b = synthetic_runs.run(tmp_path / "b", weights_sha256="b" * 64, left=left)
    for folder in (a, b):
        folder.write_fingerprints(read_report(folder.path, synthetic_runs.images()).summary.fingerprints)
    return a.path, b.path


def compared(a, b):
    return compare_runs(a, b, data=synthetic_runs.images())


def test_every_line_is_the_paired_comparison_of_two_protocols(runs):
    found = compared(*runs)
    assert [line.protocol for line in found.lines] == ["clean", *[*synthetic_runs.LEFT][:-1], "worst"]
    for line in found.lines:
        if line.protocol in ("clean", "worst"):
            masks = [getattr(report.summary, line.protocol).defended for report in (found.a, found.b)]
        else:
            masks = [report.summary.protocol(line.protocol).defended for report in (found.a, found.b)]
        masks = [mask.tolist() for mask in masks]
        only_a = sum(one and not other for one, other in zip(*masks, strict=True))
        only_b = sum(other and not one for one, other in zip(*masks, strict=True))
        assert (line.only_a, line.only_b, line.n) == (only_a, only_b, synthetic_runs.N)
        assert (line.accuracy_a, line.accuracy_b) == tuple(sum(mask) / line.n for mask in masks)
        assert (line.difference, line.low, line.high) == paired_difference(*map(np.array, masks))
        assert line.low <= line.difference <= line.high
        assert line.p_value == mcnemar_p_value(only_a, only_b)
    lines = {line.protocol: line for line in found.lines}
    every = synthetic_runs.N // 20
    assert (lines[SECOND].only_a, lines[SECOND].only_b) == (0, 3 * every)
    assert (lines[THIRD].only_a, lines[THIRD].only_b) == (5 * every, 0)
    assert lines[THIRD].p_value == 2 / 2 ** (5 * every)


def test_the_order_of_the_runs_changes_only_the_sign(runs):
    found, back = compared(*runs), compared(*runs[::-1])
    for line, other in zip(found.lines, back.lines, strict=True):
        assert line.difference == -other.difference
        assert line.low == pytest.approx(-other.high)
        assert line.p_value == other.p_value
    assert (found.missing_in_a, found.missing_in_b) == ((), (LAST,))
    assert (back.missing_in_a, back.missing_in_b) == ((LAST,), ())


def test_a_run_compared_with_itself(runs):
    for line in compared(runs[0], runs[0]).lines:
        assert (line.difference, line.only_a, line.only_b, line.p_value) == (0, 0, 0, 1.0)
        assert line.same_attacks


def test_other_attacks_of_a_protocol_are_named(runs):
    change_json(runs[1] / "run.json", lambda plan: plan["attempts"][2]["attack"].update(settings={"steps": 5}))
    lines = {line.protocol: line.same_attacks for line in compared(*runs).lines}
    assert not lines[THIRD]
    assert not lines["worst"]
    assert lines[SECOND]


def test_reports_are_compared_as_folders_are(runs):
    reports = [read_report(run, synthetic_runs.images()) for run in runs]
    assert compare_runs(*reports).lines == compared(*runs).lines


def test_a_void_run_is_compared_on_clean_images_alone(runs):
    reports = [read_report(run, synthetic_runs.images()) for run in runs]
    void = replace(reports[0], verdict=RobustnessVerdict(name=INVALID, reasons=("a check",)))
    usual = compare_runs(*reports).lines
    hidden = dict.fromkeys(("difference", "low", "high", "p_value", "only_a", "only_b"))
    for found, which in (
        (compare_runs(void, reports[1]), "accuracy_a"),
        (compare_runs(reports[1], void), "accuracy_b"),
    ):
        assert [line.protocol for line in found.lines] == [line.protocol for line in usual]
        assert found.lines[0].difference == 0
        for line in found.lines[1:]:
            other = {"accuracy_a", "accuracy_b"} - {which}
            assert {key: value for key, value in asdict(line).items() if key in {*hidden, which}} == {
                **hidden,
                which: None,
            }
            assert all(getattr(line, name) is not None for name in other)


def test_means_over_draws_have_a_normal_interval_and_no_p_value(runs):
    fixed, random = (read_report(run, synthetic_runs.images()) for run in runs)
    drawn = np.random.default_rng(0).random((synthetic_runs.N, 8)) < 0.3
    worst = replace(random.summary.worst, drawn=drawn)
    random = replace(random, summary=replace(random.summary, worst=worst))
    line = compare_runs(fixed, random).lines[-1]
    differences = fixed.summary.worst.defended.astype(float) - drawn.mean(1)
    assert (line.accuracy_b, line.p_value) == (pytest.approx(drawn.mean()), None)
    assert line.difference == pytest.approx(differences.mean())
    half = 1.959964 * np.sqrt(differences.var(ddof=1) / len(differences))
    assert (line.low, line.high) == pytest.approx((line.difference - half, line.difference + half))
    assert (line.only_a, line.only_b) == ((differences > 0).sum(), (differences < 0).sum())


def test_pandas_gets_the_lines(runs, monkeypatch):
    found = compared(*runs)
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda lines, columns: lines))
    frame = found.to_pandas()
    assert frame == [asdict(line) for line in found.lines]
    assert [*frame[0]] == [one.name for one in fields(ProtocolComparison)]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        found.to_pandas()


def test_a_data_frame(runs):
    pytest.importorskip("pandas")
    frame = compared(*runs).to_pandas()
    assert frame[frame.protocol == THIRD].only_a.item() == 5 * synthetic_runs.N // 20


DIFFERENT = {
    "images": (lambda plan: plan["data"].update(sha256="0" * 64), "different images: 100 of made-up/test and 100 of"),
    "radius": (lambda plan: plan["threat"].update(eps=0.2), "different threats: linf 0.1 and linf 0.2"),
    "norm": (lambda plan: plan["threat"].update(norm="l2"), "different threats: linf 0.1 and l2 0.1"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_runs_on_different_images_or_threats_are_refused(runs, case):
    change, message = DIFFERENT[case]
    change_json(runs[1] / "run.json", change)
    with pytest.raises(InputError, match=message):
        compared(*runs)


def test_unfinished_and_changed_runs_are_refused(runs):
    small_runs.change_batch(runs[1], 0, 0, lambda batch: {"defended": np.ones_like(batch.defended)})
    with pytest.raises(FileError, match="attempts/00/0000 was changed after the run"):
        compared(*runs)
    (runs[1] / FINGERPRINTS).unlink()
    with pytest.raises(InputError, match="is not finished"):
        compared(*runs)


def test_images_are_loaded_by_the_name_that_the_run_has_stored(tmp_path):
    digits = soap.data.load("mnist-mini").take(6)
    model = soap.load("mnist-fcn-dr")
    for name in ("a", "b"):
        soap.evaluate(soap.Defence(model), digits, suite="noise", eps=0.1, steps=1, queries=2, out=tmp_path / name)
    found = compare_runs(str(tmp_path / "a"), tmp_path / "b")
    assert [line.protocol for line in found.lines][:2] == ["clean", "noise"]
    assert {line.difference for line in found.lines} == {0.0}
