"""docs/adaptive.md is what the committed runs say, and nothing in them leads out of the repository."""

import json
import re
from dataclasses import replace

from soap.evaluation.run_folder import RunFolder
from soap.evaluation.verdict import NOTHING, TRUSTED, UPPER
from soap.paper.pages.adaptive import committed_runs, results_section
from soap.paper.render import RESULTS
from soap.results import Store

RUNS = RESULTS / "adaptive"


def test_every_run_is_there_with_its_worst_case_and_verdict():
    runs = committed_runs(RUNS)
    assert {run.name for run in runs} == {path.name for path in RUNS.iterdir() if path.is_dir()}
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in results_section(runs).splitlines()[:20]]
    by_name = {cells[0]: cells[1:] for cells in lines if len(cells) == 1 + len(runs)}
    for column, run in enumerate(runs):
        worst = run.rows["worst"]
        assert run.verdict in (TRUSTED, UPPER, NOTHING)
        assert worst.correct <= min(row.correct for row in run.rows.values())
        assert by_name[""][column].startswith(f"[{run.name}]")
        # What says nothing has no headline.
        assert by_name["**worst**"][column] == (f"**{100 * worst.accuracy:.1f}**" if run.counts else "no number")
        assert by_name["verdict"][column] == run.verdict


def test_a_void_run_has_no_worst_case_on_the_page():
    (void,) = [replace(run, verdict=NOTHING) for run in committed_runs(RUNS) if run.name == "mnist-cnn-dr"]
    text = results_section([void])
    assert "| **worst** | no number |" in text
    assert f"{100 * void.rows['worst'].accuracy:.1f}" not in text.split("NVIDIA")[0]


def test_every_run_has_its_command_and_commit():
    for folder in (path for path in RUNS.iterdir() if path.is_dir()):
        command = json.loads((folder / "facts" / "asked.json").read_text(encoding="utf-8"))["command"]
        assert re.fullmatch(r"soap evaluate \S+ --suite full .* --out runs/\S+", command)
        assert all(row.provenance.commit for row in Store(folder / "rows.jsonl").read())


def test_the_files_of_every_run_still_fit_their_checksums():
    for path in (path for path in RUNS.iterdir() if path.is_dir()):
        folder = RunFolder(path)
        assert folder.plan()["attempts"]
        assert folder.read_fingerprints()
        assert all(folder.read_fact(fact.stem) for fact in (path / "facts").iterdir())
