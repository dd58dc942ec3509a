"""What tools/keep_run.py takes of a run, and what it leaves."""

from pathlib import Path

import keep_run as tool
import pytest
from page_suite_runs import origin
from report_samples import sample_row
from run_samples import sample_images, sample_run

from soap.errors import FileError
from soap.evaluation.run_folder import RunFolder


def run_of(purifier: str, path: Path) -> Path:
    """A run's folder as a suite that ended leaves it; what the files say does not matter here."""
    sample_run(path, sample_images())
    RunFolder(path).write_fact("asked", {"purifier": purifier, "command": "soap evaluate"})
    for name in ("rows.jsonl", "findings.json"):
        (path / name).write_text(f"{name} of {path.name}", encoding="utf-8")
    RunFolder(path).write_fingerprints({"clean/0000": 64 * "a"})
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_on_soap_is_kept_whole_but_for_its_images(tmp_path):
    run = run_of("soap", tmp_path / "some-model")
    (run / "report.html").write_text("the page", encoding="utf-8")  # made again by `soap report`
    kept = tool.keep(run, tmp_path / "results")
    assert kept == tmp_path / "results" / "adaptive" / "some-model"
    assert files(kept) == {name: held for name, held in files(run).items() if not name.endswith((".npz", ".html"))}


def test_of_another_purifier_what_its_line_is_rendered_from_is_kept(tmp_path):
    run = run_of("hedge", tmp_path / "some-model-hedge")
    kept = tool.keep(run, tmp_path / "results")
    assert kept == tmp_path / "results" / "purifiers" / "some-model-hedge"
    assert {*files(kept)} == {"rows.jsonl", "findings.json", "asked.json"}
    assert (kept / "asked.json").read_bytes() == (run / "facts" / "asked.json").read_bytes()
    RunFolder(run).write_fact("continued", {"by": [{"commit": "0123456789ab"}]})
    assert {*files(tool.keep(run, tmp_path / "results"))} == {*files(kept), "continued.json"}
    row = sample_row("worst", purified=True, correct=1)
    assert origin(row, kept).startswith(f"{row.provenance.device}, commit {row.provenance.commit[:7]} and 0123456, ")
    assert origin(row, run).startswith(f"{row.provenance.device}, commit {row.provenance.commit[:7]}, ")


def test_an_earlier_run_of_that_name_is_replaced(tmp_path):
    run = run_of("hedge", tmp_path / "some-model-hedge")
    kept = tool.keep(run, tmp_path / "results")
    (kept / "left-over.json").touch()
    (run / "rows.jsonl").write_text("newer", encoding="utf-8")
    assert tool.keep(run, tmp_path / "results") == kept
    assert not (kept / "left-over.json").exists()
    assert (kept / "rows.jsonl").read_text(encoding="utf-8") == "newer"


@pytest.mark.parametrize("missing", ["rows.jsonl", "findings.json", "seal.json", "facts/asked.json"])
def test_what_did_not_end_is_refused_and_replaces_nothing(tmp_path, missing):
    run = run_of("soap", tmp_path / "some-model")
    kept = tool.keep(run, tmp_path / "results")
    before = files(kept)
    (run / missing).unlink()
    with pytest.raises(FileError, match=f"has no {missing}"):
        tool.keep(run, tmp_path / "results")
    assert files(kept) == before
