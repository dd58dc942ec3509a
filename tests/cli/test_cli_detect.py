"""`soap detect`: one table, JSON, and rows that the page renders."""

from page_measurements import detection_table

from soap.results import Store

TRIAL = ("detect", "mnist-fcn-dr", "--data", "mnist-mini", "--limit", "8", "--steps", "3")


def test_table_rows_and_page(run, tmp_path):
    done = run(*TRIAL, "--out", "rows.jsonl")
    assert done.code == 0
    assert done.out.count("(not adaptive)") == 2
    rows = Store(tmp_path / "rows.jsonl").read()
    assert len(rows) == 8
    page = detection_table(rows)
    assert page.count("| `mnist-fcn-dr` |") == 8
    assert page.count("| no |") == 2


def test_json_has_the_results(run):
    got = run(*TRIAL, "--json", "--quiet", "--score", "eps").json
    assert (got["score"], got["eps"], len(got["results"])) == ("eps", 0.3, 8)


def test_bad_input_is_one_line(run):
    for arguments, words in (
        (("detect", "mnist-fcn-no-def", "--data", "mnist-mini"), "auxiliary task"),
        ((*TRIAL, "--score", "los"), "did you mean loss"),
        ((*TRIAL, "--rule", "unroled"), "did you mean unrolled"),
    ):
        done = run(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert words in done.err
