"""The README's table: one line for each committed run of the suite, with the numbers of the rows."""

from dataclasses import replace

from page_suite_runs import ABSENT, bundled_rows, committed_runs, evaluated_models_table
from render_pages import RESULTS

from soap.evaluation.verdict import INVALID, RobustnessVerdict

RUNS, ROWS = committed_runs(RESULTS / "adaptive"), bundled_rows()


def lines(runs):
    return [
        [cell.strip() for cell in line[1:-1].split("|")] for line in evaluated_models_table(ROWS, runs).splitlines()
    ]


def test_every_run_has_a_line_with_its_numbers():
    _, _, *found = lines(RUNS)
    assert len(found) == len(RUNS)
    for run, (model, _, clean, pgd, worst, verdict) in zip(RUNS, found, strict=True):
        row = run.rows["worst"]
        own = {one.attack.name: one for one in ROWS if (one.model, one.defence) == (row.model, row.defence)}
        assert model == f"`{row.model}`"
        assert clean.startswith(f"{100 * own['none'].accuracy:.1f} [")
        assert pgd.startswith(f"{100 * own['pgd'].accuracy:.1f} [")
        assert worst.startswith(f"**{100 * row.accuracy:.1f} [")
        assert worst.endswith(f"n = {row.n:,}**")
        assert verdict == run.verdict.name


def test_gradients_of_one_model_have_lines_of_their_own():
    found = [cells[1] for cells in lines(RUNS) if cells[0] == "`cifar10-resnet18-lc`"]
    assert found == ["SOAP, gradient paper", "SOAP, gradient stop"]


def test_a_void_run_has_no_worst_case():
    (cells,) = lines([replace(RUNS[0], verdict=RobustnessVerdict(name=INVALID, reasons=()))])[2:]
    assert cells[4:] == [f"**{ABSENT}**", INVALID]
