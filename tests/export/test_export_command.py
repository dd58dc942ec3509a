"""`soap export` from the command line."""

import json

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def test_a_classifier_is_written_and_checked(run, tmp_path):
    options = ("--check", "--limit", 30, "--results", "rows.jsonl", "--json")
    done = run("export", "mnist-fcn-no-def", "--out", "onnx", *options)
    assert done.code == 0, done.err
    assert "mnist is not present, so mnist-mini is used." in done.err
    assert set(done.json["parts"]) == {"classifier"}
    assert done.json["purifier"] is None
    found = done.json["check"]
    assert (found["data"], found["images"], found["holds"]) == ("mnist-mini", 30, True)
    assert found["attack"].startswith("PGD(eps=0.3")
    assert found["parts"]["classifier"]["agree"] == 1
    assert found["parts"]["classifier"]["double_torch"] is None  # asked only where too few agree
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["parts"] == found["parts"]
    assert row["model"] == "mnist-fcn-no-def"
    assert row["provenance"]["command"].startswith("soap")

    again = run("export", "mnist-fcn-no-def", "--out", "onnx")
    assert (again.code, again.out) == (2, "")
    assert "classifier.onnx already exists" in again.err
    assert "--force" in again.err


def test_a_step_is_exported_with_given_settings(run, tmp_path):
    done = run("export", "mnist-fcn-dr", "--out", "onnx", "--part", "step", "--eps", "1/4", "--steps", 2)
    assert done.code == 0, done.err
    settings = json.loads((tmp_path / "onnx" / "manifest.json").read_text())["settings"]
    assert (settings["eps"], settings["grid"], settings["steps"]) == (0.25, [0.25], 2)
    assert "onnx/step.onnx" in done.out


def test_disagreeing_files_are_an_error(run, monkeypatch):
    """Make onnxruntime return other logits."""
    import soap.onnx_export.onnx_files as onnx_files

    honest = onnx_files.OnnxModel.run

    def lying(self, part, *inputs):
        return [-output for output in honest(self, part, *inputs)]

    monkeypatch.setattr(onnx_files.OnnxModel, "run", lying)
    done = run("export", "mnist-fcn-no-def", "--out", "onnx", "--check", "--limit", 20)
    assert done.code == 1
    assert "do not use these files" in done.err
    assert "0 of 1 parts agree" in done.out
    assert "classifier: torch in double precision agrees with torch on 100.00 %, with the file on 0.00 %." in done.err


BAD = [
    (("mnist-fcn-dr", "--part", "stp"), "did you mean step"),
    (("mnist-fcn-no-def", "--part", "whole"), "without an auxiliary task"),
    (("mnist-fcn-dr", "--eps", "oracle"), "chooses by the true label"),
    (("mnist-fcn-dr", "--eps", "wide"), "'wide'"),
    (("mnist-fcn-dr", "--gradient", "stop"), "only the task 'consistency'"),
    (("mnist-fcn-dr", "--opset", "3"), "opset is 3"),
    (("mnist-fcn-dr", "--data", "mnist-mini"), "needs --check"),
    (("mnist-fcn-dr", "--results", "rows.jsonl"), "needs --check"),
    (("no-such-model",), "unknown model"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_bad_usage_is_one_line(run, tmp_path, arguments, said):
    done = run("export", *arguments, "--out", "onnx")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "onnx").exists()


def test_a_missing_data_set_is_an_error_before_the_work(run, tmp_path):
    done = run("export", "cifar10-resnet18-lc", "--out", "onnx", "--check")
    assert done.code == 1
    assert "soap data download cifar10" in done.err
    assert not (tmp_path / "onnx").exists()
