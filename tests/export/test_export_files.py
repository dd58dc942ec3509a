"""The exported folder: metadata in the files, the manifest, and errors for incomplete folders."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import soap
from soap.errors import FileError, InputError
from soap.evaluation import fingerprint
from soap.onnx_export import MANIFEST, PARTS, export, open_onnx

DIGIT = np.full((2, 1, 28, 28), 0.5, np.float32)


@pytest.fixture
def copied(classifier_folder, tmp_path):
    """A copy of the folder that a test may damage."""
    return Path(shutil.copytree(classifier_folder, tmp_path / "copied"))


def test_the_manifest_describes_the_files(fcn, fcn_files):
    manifest = json.loads((fcn_files.folder / MANIFEST).read_text())
    assert manifest["model"] == "mnist-fcn-dr"
    assert manifest["weights_sha256"] == fingerprint(fcn)
    assert manifest["settings"]["label"] == repr(fcn_files.purifier)
    assert manifest["settings"]["steps"] == 2
    assert tuple(manifest["parts"]) == PARTS
    for part in manifest["parts"].values():
        content = (fcn_files.folder / part["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        assert len(content) == part["bytes"]


def test_a_file_contains_its_metadata(fcn, fcn_files):
    for part, path in fcn_files.paths.items():
        session = onnxruntime.InferenceSession(path)
        meta = session.get_modelmeta()
        stored = meta.custom_metadata_map
        assert (meta.producer_name, stored["part"], stored["model"]) == ("soap-defense", part, "mnist-fcn-dr")
        assert stored["version"] == soap.__version__
        assert stored["weights_sha256"] == fingerprint(fcn)
        assert json.loads(stored["input_range"]) == [0, 1]
        assert json.loads(stored["settings"])["step_size"] == 0.2
        assert session.get_inputs()[0].shape == ["batch", 1, 28, 28]


def test_a_file_is_valid_onnx_without_paths_of_this_machine(fcn_files):
    here = str(Path(soap.__file__).parent).encode()
    for path in fcn_files.paths.values():
        onnx.checker.check_model(path, full_check=True)
        assert here not in path.read_bytes()


def test_another_opset_is_written(tmp_path):
    model = soap.load("mnist-fcn-no-def")
    export(model, tmp_path, opset=18)
    assert [one.version for one in onnx.load(tmp_path / "classifier.onnx").opset_import if one.domain == ""] == [18]
    assert open_onnx(tmp_path).run("classifier", DIGIT)[0].shape == (2, 10)


def test_a_model_without_a_task_exports_only_its_classifier(classifier_folder):
    assert set(open_onnx(classifier_folder).sessions) == {"classifier"}


def test_the_model_is_unchanged_by_an_export(fcn, fcn_files):
    assert all(parameter.requires_grad for parameter in fcn.parameters())
    assert not fcn.training


BAD = [
    ({"parts": ["clasifier"]}, "did you mean classifier"),
    ({"parts": []}, "at least one of classifier"),
    ({"eps": "oracle"}, "chooses by the true label"),
    ({"eps": "min-aux-batch"}, "other images of its batch"),
    ({"eps": -0.1}, "eps is -0.1"),
    ({"steps": 0}, "steps"),
    ({"step_size": 0.0}, "step_size"),
    ({"opset": 17}, "opset is 17, expected 18 to"),
    ({"opset": 99}, "opset is 99"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_bad_arguments_are_refused_before_anything_is_written(fcn, tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        export(fcn, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_purifier_needs_a_task(tmp_path):
    with pytest.raises(InputError, match="without an auxiliary task"):
        export(soap.load("mnist-fcn-no-def"), tmp_path, parts=["step"])


def test_files_are_not_overwritten_without_force(copied):
    before = (copied / "classifier.onnx").read_bytes()
    (copied / MANIFEST).unlink()
    with pytest.raises(InputError, match=r"classifier.onnx already exists"):
        export(soap.load("mnist-fcn-no-def"), copied)
    assert (copied / "classifier.onnx").read_bytes() == before


def test_a_failed_export_keeps_the_old_files(copied, monkeypatch):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}

    def broken(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.onnx.ONNXProgram.save", broken)
    with pytest.raises(FileError, match="disk is full"):
        export(soap.load("mnist-fcn-no-def"), copied, force=True)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_it_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=rf"package {missing}, .*pip install '\.\[onnx\]'"):
        export(soap.load("mnist-fcn-no-def"), tmp_path)


def spoil_file(folder):
    content = bytearray((folder / "classifier.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "classifier.onnx").write_bytes(content)


SPOILT = {
    "a flipped bit": (spoil_file, "sha256 is"),
    "a cut": (lambda folder: (folder / "classifier.onnx").write_bytes(b""), "sha256 is"),
    "a lost file": (lambda folder: (folder / "classifier.onnx").unlink(), "no such file"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "no such file"),
    "no JSON": (lambda folder: (folder / MANIFEST).write_text("{"), "not a manifest"),
    "a list": (lambda folder: (folder / MANIFEST).write_text("[]"), "not a manifest"),
    "another schema": (lambda folder: (folder / MANIFEST).write_text('{"schema": "x"}'), "its schema is 'x'"),
    "no parts": (lambda folder: (folder / MANIFEST).write_text('{"schema": "soap-export/1"}'), "not a manifest"),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILT.values(), ids=SPOILT)
def test_an_incomplete_folder_is_refused(copied, spoil, said):
    spoil(copied)
    with pytest.raises(FileError, match=said):
        open_onnx(copied)
