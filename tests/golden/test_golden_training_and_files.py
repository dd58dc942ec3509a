"""Short trainings, rows of `soap evaluate` and the outputs of ONNX files as they were recorded."""

import adapter
import cases
import numpy as np
import pytest
from compare import LOSS, PIXEL, PIXELS, SPARE, as_recorded, check_rows, differing, same_pixels

EXACT = ("attack", "eps_pfy", "purifier", "n")
STABLE = ("reconstruction", "pgd", "wgan", "pixelcnn")
"""Trainings that end the same on every CPU; batch norm over eight images amplifies rounding from step to step."""


@pytest.mark.parametrize("task", [*adapter.TRAININGS, *adapter.GENERATIVE])
def test_twenty_steps_of_training(task, tmp_path):
    got, want = cases.trained(task, tmp_path), cases.recorded("files.npz")[f"train/{task}"]
    assert set(got) == set(want)
    if not as_recorded() and task not in STABLE:  # the first two steps alone
        got, want = ({name: one[name][:1] for name in ("classification", "auxiliary")} for one in (got, want))
    for name, values in want.items():
        # One number in ten thousand; the absolute part is for sums and differences that are close to zero.
        np.testing.assert_allclose(got[name], values, rtol=LOSS, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", cases.EVALUATIONS)
def test_rows_of_evaluate(case, tmp_path):
    got, want = cases.evaluated(case, tmp_path), cases.recorded("runs.json")["evaluations"][case]
    assert [[row[key] for key in EXACT] for row in got] == [[row[key] for key in EXACT] for row in want]
    for ours, theirs in zip(got, want, strict=True):
        assert abs(ours["correct"] - theirs["correct"]) <= SPARE
        assert ours["accuracy"] == ours["correct"] / ours["n"]
        assert ours["interval"] == pytest.approx(theirs["interval"], abs=0.03)  # what one image of 50 moves it by
        assert ours["measures"] == pytest.approx(theirs["measures"], rel=1e-2, abs=1e-4)


def test_the_onnx_files(tmp_path):
    got, want = cases.exported(tmp_path), cases.recorded("files.npz")["onnx"]
    assert set(got) == set(want)
    labels = [one["whole.logits"].argmax(1) for one in (got, want)]
    rows = {*differing(*labels, 0, 0), *differing(got["whole.eps"], want["whole.eps"], 0, PIXEL)}
    assert len(rows) <= SPARE
    same = [row for row in range(len(labels[0])) if row not in rows]
    for name, values in want.items():
        if values.ndim == 4:
            assert same_pixels(got[name][same], values[same]) >= PIXELS, name
        else:
            np.testing.assert_allclose(got[name][same], values[same], rtol=1e-3, atol=1e-3, err_msg=name)
    purifier = cases.recorded("purified.npz")[cases.EXPORTED_PURIFIER]  # torch, on the same and further images
    check_rows(
        cases.EXPORTED_PURIFIER,
        cases.purified_by_onnx(got),
        {key: one[: len(labels[0])] for key, one in purifier.items()},
    )
