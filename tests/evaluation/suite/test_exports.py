"""A report as pandas, CSV, JSON, LaTeX and RobustBench's model_info."""

import csv
import io
import json
import math
import re
import sys
import types
from dataclasses import replace

import pytest
import synthetic_runs

from soap.errors import InputError
from soap.evaluation import exports, read_report
from soap.evaluation.verdict import INVALID, RobustnessVerdict
from soap.results import from_json


@pytest.fixture
def report(tmp_path):
    threat = {"eps": 8 / 255, "norm": "linf"}
    synthetic_runs.run(tmp_path / "run", weights_sha256="a" * 64, threat=threat, shift=8 / 255)
    return read_report(tmp_path / "run", synthetic_runs.images())


@pytest.fixture
def void(report):
    return replace(report, verdict=RobustnessVerdict(name=INVALID, reasons=("check 1_2, 50 % & more",)))


def test_lines_are_the_rows(report):
    lines = exports.result_lines(report)
    assert len(lines) == len(report.rows)
    for line, row in zip(lines, report.rows, strict=True):
        assert tuple(line) == exports.COLUMNS
        assert (line["n"], line["correct"], line["accuracy"]) == (row.n, row.correct, row.accuracy)
        assert (line["low"], line["high"]) == row.interval
        assert line["protocol"] == row.protocol
    assert len({(line["attack"], line["defence"]) for line in lines}) == len(lines)


def test_pandas_gets_the_lines(report, monkeypatch):
    made = types.SimpleNamespace(DataFrame=lambda lines, columns: (lines, columns))
    monkeypatch.setitem(sys.modules, "pandas", made)
    assert report.to_pandas() == (exports.result_lines(report), list(exports.COLUMNS))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        report.to_pandas()


def test_a_data_frame(report):
    pytest.importorskip("pandas")
    frame = report.to_pandas()
    assert tuple(frame.columns) == exports.COLUMNS
    worst = frame[(frame.protocol == "worst") & (frame.defence != "none")]
    assert worst.accuracy.item() == report.worst


def test_csv_and_json_read_back(report, tmp_path):
    report.save(tmp_path / "r.csv")
    found = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text())))
    assert found == [{key: str(value) for key, value in line.items()} for line in exports.result_lines(report)]
    report.save(tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert [from_json(row).key for row in content["rows"]] == [row.key for row in report.rows]
    assert content["verdict"]["name"] == report.verdict.name


def test_latex_has_one_line_a_protocol_and_the_worst_in_bold(report):
    text = report.to_latex()
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert [line.count("&") for line in body] == [3] * (2 + len(report.summary.protocols))
    bold = [line for line in body if r"\textbf" in line]
    low, high = report.interval
    assert bold == [
        rf"\textbf{{worst}} & \textbf{{{100 * report.worst:.1f}}} & "
        rf"\textbf{{[{100 * low:.1f}, {100 * high:.1f}]}} & \textbf{{{report.n}}} \\"
    ]
    assert report.verdict.name in text
    assert text.count("{") == text.count("}")


def test_special_characters_are_escaped():
    assert exports._escaped("a_b & 5 % {x} #1 $ ^ ~ \\") == (
        r"a\_b \& 5 \% \{x\} \#1 \$ \textasciicircum{} \textasciitilde{} \textbackslash{}"
    )


def test_robustbench_fields(report, tmp_path):
    found = report.to_robustbench(authors="A. Author", venue="arXiv")
    assert tuple(found) == exports.ROBUSTBENCH_FIELDS
    assert (found["authors"], found["venue"]) == ("A. Author", "arXiv")
    assert (found["link"], found["architecture"], found["reported"]) == (None, None, None)
    assert (found["dataset"], found["eps"], found["number_forward_passes"]) == ("made-up", "8/255", 17)
    assert (found["clean_acc"], found["autoattack_acc"], found["external"]) == ("100.00", "45.00", "35.00")
    assert found["footnote"].startswith("linf, 95 % interval of external [26.36, 44.75], 100 images; CHECKS ")
    assert found["unreliable"] is (report.verdict.name == INVALID)
    report.save(tmp_path / "r.robustbench.json")
    assert json.loads((tmp_path / "r.robustbench.json").read_text()) == report.to_robustbench()
    with pytest.raises(InputError, match="author"):
        report.to_robustbench(author="A")


@pytest.mark.parametrize(("eps", "text"), [(8 / 255, "8/255"), (0.3, "0.3"), (0.5, "0.5"), (0.2, "0.2")])
def test_radius_as_robustbench_writes_it(eps, text):
    assert exports._fraction(eps) == text


NOTE = (
    "No accuracy under attack is shown, because a check failed (check 1_2, 50 % & more); the raw data stay in the run "
    "folder."
)


def test_a_void_run_has_no_worst_case(void):
    assert math.isnan(void.worst)
    assert all(math.isnan(end) for end in void.interval)
    assert (void.n, void.verdict.note) == (100, NOTE)
    assert repr(void) == "SuiteReport(no accuracy of 100 images: INVALID (check 1_2, 50 % & more))"


def test_a_void_run_exports_no_accuracy_under_attack(void):
    lines = exports.result_lines(void)
    assert [line["attack"] for line in lines][-1] == "worst"
    for line, row in zip(lines, void.rows, strict=True):
        own = line["correct"], line["accuracy"], line["low"], line["high"], line["note"]
        clean = row.correct, row.accuracy, *row.interval, ""
        assert own == (clean if row.attack.name == "clean" else (None, None, None, None, NOTE))
    found = [
        line for line in csv.DictReader(io.StringIO(exports.as_csv(void))) if not line["attack"].startswith("clean")
    ]
    assert {(line["correct"], line["accuracy"], line["low"], line["high"]) for line in found} == {("", "", "", "")}
    assert json.loads(exports.as_json(void))["rows"] == []
    assert json.loads(exports.as_json(void))["note"] == NOTE


def test_a_data_frame_of_a_void_run(void):
    pytest.importorskip("pandas")
    frame = void.to_pandas()
    attacked = frame[frame.note != ""]
    assert set(frame[frame.note == ""].protocol) == {"transfer"}  # the clean images
    assert len(attacked) == len(frame) - 2
    assert attacked[["correct", "accuracy", "low", "high"]].isna().all(axis=None)


def test_bibtex_states_model_worst_case_verdict_version_commit_and_date(report, void):
    text, made = exports.as_bibtex(report), report.worst_row.provenance
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", text, re.MULTILINE))
    low, high = report.interval
    line = f"worst {100 * report.worst:.1f} \\% [{100 * low:.1f}, {100 * high:.1f}] of {report.n:,} images"
    assert f"{line}: {report.verdict.name}" in fields["note"]
    assert made.date[:10] in fields["note"]
    assert fields["howpublished"] == f"soap-defense {made.version}, commit {made.commit}"
    assert (fields["year"], text.count("{")) == (made.date[:4], text.count("}"))
    assert re.fullmatch(r"@misc\{[A-Za-z0-9-]+,", text.splitlines()[0])
    assert not re.search(r"(?<!\\)[%&_#$]", "".join(fields.values()))
    hidden = exports.as_bibtex(void)
    assert "no accuracy of" in hidden
    assert "worst" not in hidden


def test_latex_and_robustbench_of_a_void_run(void):
    text = void.to_latex()
    assert "textbf" not in text
    assert r"check 1\_2, 50 \% \& more" in text
    assert "the raw data stay in the run folder" in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert [line.split(" & ")[1:3] for line in body[1:]] == [["--", "--"]] * (len(body) - 1)
    found = void.to_robustbench()
    assert (found["clean_acc"], found["autoattack_acc"], found["external"]) == ("100.00", None, None)
    assert found["unreliable"]
    assert found["footnote"] == f"linf, 100 images; INVALID. {NOTE}"


def test_unknown_formats_raise(report, tmp_path):
    with pytest.raises(InputError, match=r"\.tex"):
        report.save(tmp_path / "r.txt")
    with pytest.raises(InputError, match="latex"):
        report.save(tmp_path / "r.txt", format="latx")
