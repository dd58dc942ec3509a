"""Verification of a run: an unchanged run holds, and every change of its files is found."""

import json
import shutil

import numpy as np
import pytest
import torch
from small_runs import change_batch, change_json, defence, forge_fingerprints, images, run
from tiny import tiny_model

import soap
from soap.data.dataset import make_dataset
from soap.defence import Defence
from soap.errors import FileError
from soap.evaluation import verify_run
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.verification import RowComparison
from soap.results import Store


@pytest.fixture(scope="module", autouse=True)
def no_git():
    """Avoid a call of git for every plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAP_COMMIT", "test")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "transfer"
    report = run(out, suite="transfer")
    assert 0 < report.summary.worst.correct < report.summary.clean.correct
    return out


@pytest.fixture
def out(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def broken_row(out):
    """(attempt, batch, place) of an image that the defence got wrong after an attempt."""
    y = images().y.numpy()
    for attempt in range(4):
        for number in range(2):
            batch = RunFolder(out).read_batch(attempt, number)
            wrong = np.flatnonzero(batch.defended != y[batch.rows])
            if len(wrong):
                return attempt, number, int(wrong[0])
    raise AssertionError("nothing was broken")


def test_an_unchanged_run_holds(out):
    found = verify_run(defence(), images(), out)
    assert found.holds
    assert (found.problems, found.changed) == ((), 0)
    assert found.labels >= 11
    rows = {(row.attack, row.defence): row.correct for row in Store(out / "rows.jsonl").read()}
    assert {(one.row.attack, one.row.defence): one.row.correct for one in found.comparisons} == rows
    assert [one.row.attack.name for one in found.comparisons[::2]] == ["clean", "transfer", "worst", "worst"]


def test_verification_changes_neither_model_nor_files(out):
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ours = defence()
    weights = {name: value.clone() for name, value in ours.state_dict().items()}
    verify_run(ours, images(), out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert all(torch.equal(value, weights[name]) for name, value in ours.state_dict().items())


def test_verification_returns_none_after_a_stop(out):
    assert verify_run(defence(), images(), out, stop=lambda: True) is None


def restore_broken_image(out):
    """Replace an image that broke the defence by the clean one."""
    attempt, number, place = broken_row(out)

    def change(batch):
        x, defended = batch.x.copy(), batch.defended.copy()
        x[place] = images().x[batch.rows[place]].numpy()
        defended[place] = images().y[batch.rows[place]]
        return {"x": x, "defended": defended}

    change_batch(out, attempt, number, change)


def test_a_changed_image_is_found_by_its_fingerprint(out):
    restore_broken_image(out)
    found = verify_run(defence(), images(), out)
    assert not found.holds
    assert any("was changed after the run" in problem for problem in found.problems)


def test_a_changed_image_with_a_forged_fingerprint_is_found_by_the_counts(out):
    restore_broken_image(out)
    forge_fingerprints(out)
    found = verify_run(defence(), images(), out)
    assert not found.holds
    assert all("surviving images were not attacked" in problem for problem in found.problems)
    assert [one.row.attack.name for one in found.comparisons if not one.holds and one.row.defence.purifies] == [
        "transfer",
        "worst",
    ]


def test_emptied_attempts_are_found(out):
    """Regression: a run with emptied attempts and matching fingerprints passed."""
    nobody = {"rows": slice(0), "x": slice(0), "defended": slice(0), "bare": slice(0)}
    for number in (0, 1):
        change_batch(out, 0, number, lambda batch: {key: getattr(batch, key)[part] for key, part in nobody.items()})
    forge_fingerprints(out)
    found = verify_run(defence(), images(), out)
    assert [problem.partition(":")[0] for problem in found.problems][:2] == ["attempts/00/0000", "attempts/00/0001"]
    assert "surviving images were not attacked; the first is" in found.problems[0]


def test_changed_labels_are_counted(out):
    attempt, number, _ = broken_row(out)
    change_batch(out, attempt, number, lambda batch: {"defended": images().y.numpy()[batch.rows]})
    forge_fingerprints(out)
    found = verify_run(defence(), images(), out)
    assert found.changed >= 1
    assert found.holds  # the rows are those of the images, whatever the batch says of them


def test_a_changed_row_is_found(out):
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    for line in lines:
        del line["checksum"], line["accuracy"]  # as a forger would
    lines[-2]["correct"] += 1
    (out / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = verify_run(defence(), images(), out)
    assert [one.row.attack.name for one in found.comparisons if not one.holds] == ["worst"]


def test_other_weights_are_found_and_not_scored(out):
    model = tiny_model(seed=1)
    found = verify_run(Defence(model, soap.SOAP(model, 0.1)), images(), out)
    assert not found.holds
    assert found.comparisons == ()
    assert "the weights of the run" in found.problems[0]


def test_another_defence_is_found(out):
    model = tiny_model()
    found = verify_run(Defence(model, soap.SOAP(model, 0.2)), images(), out)
    assert ["defence" in problem for problem in found.problems] == [True]


def test_other_images_are_found(out):
    data = images()
    other = make_dataset("noise", "test", data.x.numpy()[::-1].copy(), data.y.numpy()[::-1].copy(), data.classes)
    found = verify_run(defence(), other, out)
    assert not found.holds
    assert "the data of the run" in found.problems[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.01, 1.01, "outside"])
def test_an_illegal_image_is_found(out, value):
    clean = images().x.numpy()

    def change(batch):
        x = batch.x.copy()
        middle = clean[batch.rows[1], 0, 0, 0]
        x[1, 0, 0, 0] = (middle + 0.021 if middle < 0.5 else middle - 0.021) if value == "outside" else value
        return {"x": x}

    change_batch(out, 0, 1, change)
    forge_fingerprints(out)
    found = verify_run(defence(), images(), out)
    row = RunFolder(out).read_batch(0, 1).rows[1]
    said = f"attempts/00/0001: 1 images are not in the ball of linf radius 0.02; the first is image {row}."
    assert not found.holds
    assert found.problems == (said,)


def test_rounding_of_the_norm_is_tolerated(out):
    clean = images().x.numpy()

    def change(batch):
        x = batch.x.copy()
        x[0] = np.clip(clean[batch.rows[0]] + 0.0200005, 0, 1)
        return {"x": x}

    change_batch(out, 0, 0, change)
    forge_fingerprints(out)
    assert not any("ball" in problem for problem in verify_run(defence(), images(), out).problems)


def test_an_unfinished_run_does_not_hold(out):
    (out / "attempts" / "01" / "0001.npz").unlink()
    (out / "seal.json").unlink()
    found = verify_run(defence(), images(), out)
    assert not found.holds
    assert "attempts/01/0001 is missing" in found.problems[0]
    assert "no seal.json" in found.problems[1]


def test_arrays_that_do_not_fit_are_reported(out):
    change_batch(out, 0, 0, lambda batch: {"rows": batch.rows + 1000})
    found = verify_run(defence(), images(), out)
    assert "attempts/00/0000: its arrays do not fit the 11 images" in found.problems[0]
    assert found.comparisons == ()


def test_damaged_files_are_errors(out):
    (out / "seal.json").write_text("[]")
    with pytest.raises(FileError, match=r"seal\.json"):
        verify_run(defence(), images(), out)
    change_json(out / "run.json", lambda plan: plan.pop("data"))
    with pytest.raises(FileError, match="its data"):
        verify_run(defence(), images(), out)


@pytest.mark.parametrize(("reported", "holds"), [(500, True), (505, True), (495, True), (506, False), (None, False)])
def test_accuracies_may_differ_by_half_a_point(out, reported, holds):
    row = Store(out / "rows.jsonl").read()[0]
    assert RowComparison(row=type(row)(**{**vars(row), "n": 1000, "correct": 500}), reported=reported).holds == holds


def test_another_checksum_of_the_classifier_is_found(out):
    change_json(out / "facts" / "classifier.json", lambda kept: kept.update(weights_sha256="f" * 64))
    assert not verify_run(defence(), images(), out).holds
