"""Runs of the adaptive suite by the command line: every image, check and verdict as it was recorded."""

import cases
import pytest
from compare import SPARE, as_recorded, check_bits

COUNT, SHARE = 1, 1.01 / 49
"""What one image more or less changes in a fact: a count by one, a share of the 49 correctly classified images."""
MEAN, MEAN_ELSEWHERE = 1e-2, 0.1
"""Relative difference of other numbers, e.g. mean losses of an attack; on another CPU its sign steps differ."""


@pytest.mark.parametrize("suite", cases.SUITES)
def test_a_suite(suite, tmp_path):
    got, want = cases.suite(suite, tmp_path), cases.recorded("runs.json")["suites"][suite]
    check_bits(got["defended"], want["defended"])
    check_bits(got["bare"], want["bare"])
    counts = {name: bits.count("1") for name, bits in got["defended"].items() if name != "worst"}
    assert got["printed"] == counts  # what the command prints is what the folder holds
    assert abs(got["worst"] - want["worst"]) <= SPARE
    assert got["checks"] == want["checks"]
    assert got["verdict"] == want["verdict"]
    assert set(got["facts"]) == set(want["facts"])
    mean = MEAN if as_recorded() else MEAN_ELSEWHERE
    for name, numbers in want["facts"].items():
        found = got["facts"][name]
        assert found["truth"] == numbers["truth"], name
        assert found["whole"] == pytest.approx(numbers["whole"], abs=COUNT), name
        assert found["real"] == pytest.approx(numbers["real"], abs=SHARE, rel=mean), name
