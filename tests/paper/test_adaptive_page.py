"""docs/adaptive.md is what the committed runs say, and nothing in them leads out of the repository."""

import json
import re
from dataclasses import replace

from page_suite_runs import ABSENT, committed_runs, results_section
from render_pages import RESULTS

from soap.evaluation.run_folder import RunFolder
from soap.evaluation.verdict import INVALID, PASSED, WARNED, RobustnessVerdict
from soap.results import Store

RUNS = RESULTS / "adaptive"


def test_every_run_is_there_with_its_worst_case_and_verdict():
    runs = committed_runs(RUNS)
    assert {run.name for run in runs} == {path.name for path in RUNS.iterdir() if path.is_dir()}
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in results_section(runs).splitlines()[:20]]
    by_name = {cells[0]: cells[1:] for cells in lines if len(cells) == 1 + len(runs)}
    for column, run in enumerate(runs):
        worst = run.rows["worst"]
        assert run.verdict.name in (PASSED, WARNED, INVALID)
        assert worst.correct <= min(row.correct for row in run.rows.values())
        assert by_name[""][column].startswith(f"[{run.name}]")
        low, high = (100 * end for end in worst.interval)
        share = f"{100 * worst.accuracy:.1f} [{low:.1f}, {high:.1f}], n = {worst.n:,}"
        assert by_name["**worst**"][column] == (f"**{share}**" if run.verdict.name != INVALID else f"**{ABSENT}**")
        assert by_name["verdict"][column] == run.verdict.name


def test_a_void_run_has_no_accuracy_under_attack_on_the_page():
    verdict = RobustnessVerdict(name=INVALID, reasons=("check 16",))
    (void,) = [replace(run, verdict=verdict) for run in committed_runs(RUNS) if run.name == "mnist-cnn-dr"]
    text = results_section([void])
    assert f"| **worst** | **{ABSENT}** |" in text
    assert f"| transfer | {ABSENT} |" in text
    assert "| clean | 99.0 |" in text
    assert f"**mnist-cnn-dr**: INVALID. {verdict.note} NVIDIA" in text
    assert all(
        f"{100 * row.accuracy:.1f}" not in text.split("NVIDIA")[0]
        for row in void.rows.values()
        if row.n != row.correct and row.attack.name != "clean"
    )


def test_every_run_has_its_command_and_commit():
    for folder in (path for path in RUNS.iterdir() if path.is_dir()):
        command = json.loads((folder / "facts" / "asked.json").read_text(encoding="utf-8"))["command"]
        assert re.fullmatch(r"soap evaluate \S+ --suite full .* --out runs/\S+( --extra-attack \S+)*", command)
        assert all(row.provenance.commit for row in Store(folder / "rows.jsonl").read())


def test_the_files_of_every_run_still_fit_their_checksums():
    for path in (path for path in RUNS.iterdir() if path.is_dir()):
        folder = RunFolder(path)
        assert folder.plan()["attempts"]
        assert folder.read_fingerprints()
        assert all(folder.read_fact(fact.stem) for fact in (path / "facts").iterdir())
