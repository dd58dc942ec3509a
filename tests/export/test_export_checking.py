"""`check` sees agreement where there is, and the lack of it."""

import json
import shutil

import pytest

import soap
from soap import files
from soap.errors import FileError, InputError
from soap.export import ENOUGH, MANIFEST, Agreement, check


def test_files_that_agree(fcn, fcn_files, some):
    seen = []
    found = check(
        fcn, fcn_files.folder, some, purifier=fcn_files.purifier, batch=16, watch=lambda *told: seen.append(told)
    )
    assert [one.part for one in found] == ["classifier", "loss", "step", "whole"]
    for one in found:
        assert one.holds
        assert one.images == len(some)
        assert one.seconds_torch > 0
        assert one.ratio == one.seconds_torch / one.seconds_onnx
        assert (one.pixels is None) == (one.part in ("classifier", "loss"))
        assert one.pixels is None or one.pixels > 0.99
    assert ("checking whole", 40, 40) in seen


def swapped(folder, target, part, donor):
    """The folder with another file in the place of a part, and a manifest that says it is right."""
    shutil.copytree(folder, target)
    shutil.copy(donor, target / f"{part}.onnx")
    manifest = json.loads((target / MANIFEST).read_text())
    manifest["parts"][part]["sha256"] = files.sha256(target / f"{part}.onnx")
    (target / MANIFEST).write_text(json.dumps(manifest))
    return target


def test_another_classifier_is_noticed(fcn, fcn_files, classifier_folder, some, tmp_path):
    folder = swapped(fcn_files.folder, tmp_path / "swapped", "classifier", classifier_folder / "classifier.onnx")
    found = {one.part: one for one in check(fcn, folder, some, purifier=fcn_files.purifier)}
    assert not found["classifier"].holds
    assert found["whole"].holds


def test_losses_must_be_alike(fcn, fcn_files, some):
    other = soap.load("mnist-fcn-dr")
    loss = other.auxiliary.loss
    other.auxiliary.loss = lambda model, x: 1.01 * loss(model, x)
    other_purifier = soap.Purifier(other, steps=2, step_size=0.2)
    spoilt = {one.part: one for one in check(other, fcn_files.folder, some, purifier=other_purifier)}
    assert spoilt["loss"].agree == 0
    assert spoilt["whole"].holds  # the walk down 1.01 times a loss is the walk down the loss


@pytest.mark.parametrize(("agree", "holds"), [(1.0, True), (0.999, True), (0.998, False)])
def test_enough_is_a_matter_of_one_in_a_thousand(agree, holds):
    one = Agreement(part="step", images=1000, agree=agree, pixels=1.0, seconds_torch=1.0, seconds_onnx=2.0)
    assert one.holds is holds
    assert (one.ratio, ENOUGH) == (0.5, 0.999)


def test_other_weights_and_settings_are_refused(fcn, fcn_files, some):
    with pytest.raises(FileError, match="other weights than those of mnist-fcn-no-def"):
        check(soap.load("mnist-fcn-no-def"), fcn_files.folder, some)
    with pytest.raises(InputError, match="give the purifier"):
        check(fcn, fcn_files.folder, some)
    with pytest.raises(InputError, match="was exported with SOAP"):
        check(fcn, fcn_files.folder, some, purifier=soap.Purifier(fcn, steps=3, step_size=0.2))
