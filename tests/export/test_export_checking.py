"""`check_export` detects agreement and disagreement."""

import shutil

import numpy as np
import pytest
import torch

import soap
from soap._files import atomic, checksums
from soap.errors import FileError, InputError
from soap.onnx_export import MANIFEST, MIN_AGREEMENT, OnnxModel, PartAgreement, check_export, checking, open_onnx


def test_agreeing_files_pass(fcn, fcn_files, some):
    seen = []
    found = check_export(
        fcn,
        fcn_files.folder,
        some,
        purifier=fcn_files.purifier,
        batch_size=16,
        watch=lambda *progress: seen.append(progress),
    )
    assert [one.part for one in found] == ["classifier", "loss", "step", "whole"]
    for one in found:
        assert one.holds
        assert one.images == len(some)
        assert one.seconds_torch > 0
        assert one.ratio == one.seconds_torch / one.seconds_onnx
        assert (one.pixels is None) == (one.part in ("classifier", "loss"))
        assert one.pixels is None or one.pixels > 0.99
        assert one.double_torch is one.double_onnx is None  # asked only where too few agree
    assert ("checking whole", 40, 40) in seen


def swapped(folder, target, part, donor):
    """The folder with another file as one part, and a manifest with its checksum."""
    shutil.copytree(folder, target)
    shutil.copy(donor, target / f"{part}.onnx")
    manifest = checksums.loads((target / MANIFEST).read_bytes())
    manifest["parts"][part]["sha256"] = atomic.sha256(target / f"{part}.onnx")
    (target / MANIFEST).write_text(checksums.dumps(manifest))
    return target


def test_other_weights_are_detected(fcn, fcn_files, classifier_folder, some, tmp_path):
    folder = swapped(fcn_files.folder, tmp_path / "swapped", "classifier", classifier_folder / "classifier.onnx")
    found = {one.part: one for one in check_export(fcn, folder, some, purifier=fcn_files.purifier)}
    assert not found["classifier"].holds
    assert found["classifier"].double_torch == 1
    assert found["classifier"].double_onnx == found["classifier"].agree
    assert found["whole"].holds


def test_losses_must_agree(fcn_files, some, monkeypatch):
    other = soap.load("mnist-fcn-dr")
    task = type(other.auxiliary)
    loss = task.loss
    monkeypatch.setattr(task, "loss", lambda self, model, x: 1.01 * loss(self, model, x))
    other_purifier = soap.SOAP(other, steps=2, step_size=0.2)
    spoilt = {one.part: one for one in check_export(other, fcn_files.folder, some, purifier=other_purifier)}
    assert (spoilt["loss"].agree, spoilt["loss"].double_torch, spoilt["loss"].double_onnx) == (0, 1, 0)
    assert spoilt["whole"].holds  # steps by the sign of 1.01 times a gradient equal steps by the gradient's sign


def test_double_precision_distinguishes_rounding_from_a_wrong_graph(fcn_files, some, monkeypatch):
    """Make torch round in single precision only, so that the file is right and torch is not."""
    other = soap.load("mnist-fcn-dr")
    task = type(other.auxiliary)
    loss = task.loss
    monkeypatch.setattr(task, "loss", lambda self, model, x: (loss(self, model, x) + 1e6) - 1e6)
    other_purifier = soap.SOAP(other, steps=2, step_size=0.2)
    rounded = {one.part: one for one in check_export(other, fcn_files.folder, some, purifier=other_purifier)}["loss"]
    assert rounded.agree < 0.5
    assert rounded.double_torch < 0.5
    assert rounded.double_onnx == 1


class Coarse(OnnxModel):
    """A runtime that rounds purified images to 1/4, which changes most labels."""

    def run(self, part, *inputs):
        outputs = super().run(part, *inputs)
        return outputs if part != "step" else [np.round(4 * outputs[0]) / 4]


def test_too_few_equal_labels_are_compared_with_double_precision(fcn, fcn_files, some, monkeypatch):
    """Count agreement by hand: torch in single and double precision, and the file, one image at a time."""
    whole = open_onnx(fcn_files.folder)
    coarse = Coarse(manifest=whole.manifest, sessions={"step": whole.sessions["step"]})
    monkeypatch.setattr(checking, "open_onnx", lambda folder: coarse)
    (found,) = check_export(fcn, fcn_files.folder, some, purifier=fcn_files.purifier, batch_size=16)
    assert not found.holds
    exact = soap.SOAP(soap.load("mnist-fcn-dr").double(), steps=2, step_size=0.2)
    grid, labels = fcn_files.purifier.grid, []
    for number, image in enumerate(some[:, None]):
        eps = torch.tensor([grid[number % len(grid)]])
        single = fcn_files.purifier.trajectory(image, eps)[-1]
        double = exact.trajectory(image.double(), eps.double())[-1]
        point = image.numpy()
        for _ in range(2):
            (point,) = coarse.run("step", point, image.numpy(), np.array(0.2, np.float32), eps.numpy())
        logits = (fcn(single), exact.model(double), fcn(torch.from_numpy(point)))
        labels.append([each.argmax().item() for each in logits])
    single, double, file = torch.tensor(labels).T
    assert found.double_torch == (single == double).double().mean()
    assert found.double_onnx == (file == double).double().mean()
    assert fcn_files.purifier.model is fcn
    assert {weight.dtype for weight in fcn.parameters()} == {torch.float32}  # the double is a copy


@pytest.mark.parametrize(("agree", "holds"), [(1.0, True), (0.999, True), (0.998, False)])
def test_the_required_agreement_is_999_in_a_thousand(agree, holds):
    one = PartAgreement(part="step", images=1000, agree=agree, pixels=1.0, seconds_torch=1.0, seconds_onnx=2.0)
    assert one.holds is holds
    assert (one.ratio, MIN_AGREEMENT) == (0.5, 0.999)


def test_other_weights_and_settings_are_refused(fcn, fcn_files, some):
    with pytest.raises(FileError, match="other weights than those of mnist-fcn-no-def"):
        check_export(soap.load("mnist-fcn-no-def"), fcn_files.folder, some)
    with pytest.raises(InputError, match="pass the purifier"):
        check_export(fcn, fcn_files.folder, some)
    with pytest.raises(InputError, match="was exported with SOAP"):
        check_export(fcn, fcn_files.folder, some, purifier=soap.SOAP(fcn, steps=3, step_size=0.2))
