"""`soap demo` from end to end on a few digits, and its errors before the work starts."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import soap
from soap import recipes
from soap._files import tensor_files
from soap.cli import app, demo
from soap.report import UPPER_BOUND, percent
from soap.report.row_text import eps_text
from soap.results import from_json

FEW = ("--model", "mnist-fcn-dr", "--limit", "20", "--device", "cpu")


def call(*arguments: str | Path):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The JSON result on twenty digits, and the written page."""
    out = tmp_path_factory.mktemp("demo") / "new folder" / "page.html"
    done = call(*FEW, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), out.read_text(encoding="utf-8")


def test_json_result(measured):
    result, _ = measured
    rows = [from_json(row) for row in result["rows"]]
    assert [(row.attack.name, eps_text(row.defence)) for row in rows] == [
        (attack, eps) for attack in ("none", "fgsm", "pgd") for eps in ("none", "min-aux")
    ]
    assert result["schema"] == "soap/1"
    assert result["command"] == "demo"
    assert result["note"] == UPPER_BOUND
    assert result["seconds"] > 0
    assert Path(result["page"]).is_absolute()


def test_the_rows_equal_those_of_the_library(measured):
    result, _ = measured
    model, data = soap.load("mnist-fcn-dr"), soap.data.load("mnist-mini").take(20)
    paper = soap.evaluation.PAPER["mnist-mini"]
    attacks = {name: paper[name] for name in ("none", "fgsm", "pgd")}
    plain = soap.evaluation.evaluate_transfer(model, data, attacks, [soap.SOAP(model)])
    assert [row["correct"] for row in result["rows"]] == [row.correct for row in plain]
    assert [row["key"] for row in result["rows"]] == [row.key for row in plain]


def test_the_page_shows_the_rows(measured):
    result, page = measured
    text = " ".join(re.sub(r"<[^>]*>", "", page).split())
    for row in result["rows"]:
        assert percent(from_json(row)) in text
    assert "soap demo --model mnist-fcn-dr --limit 20" in text
    assert "mnist-fcn-dr" in text


def test_one_table_one_warning_and_the_path(tmp_path):
    done = call(*FEW, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    table = [line.split()[0] for line in lines if re.search(r"\d\.\d \[.*\] +\d", line)]
    assert table == ["no", "FGSM", "PGD"]
    assert lines.count(UPPER_BOUND) == 1
    assert lines[-1] == f"The page: {tmp_path / 'page.html'}"
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.fixture
def idle(monkeypatch):
    """Replace the demo's work by a failure: errors must come before it."""

    def work(*_, **__):
        pytest.fail("the work had started")

    monkeypatch.setattr(demo, "evaluate_transfer", work)


def test_an_output_path_that_is_a_folder_is_refused(tmp_path, idle):
    done = call(*FEW, "--out", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "it is a folder, expected a file" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_an_output_path_below_a_file_is_refused(tmp_path, idle):
    (tmp_path / "file").write_text("kept")
    done = call(*FEW, "--out", tmp_path / "file" / "page.html")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "is a file, expected a folder" in done.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_an_output_path_without_permission_is_refused(tmp_path, idle, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # the tests may run as root, who may write everywhere
    done = call(*FEW, "--out", tmp_path / "page.html")
    assert done.exit_code == 1
    assert "no permission" in done.stderr
    assert not [*tmp_path.iterdir()]


def bare_model(folder: Path) -> Path:
    """Weights of a network without an auxiliary task."""
    path = folder / "bare.safetensors"
    recipe = recipes.read("mnist-fcn-no-def")
    tensor_files.save_tensors(path, recipes.build(recipe).state_dict(), {"recipe": recipe.text})
    return path


def test_a_model_without_a_task_is_refused(tmp_path, idle):
    done = call("--model", bare_model(tmp_path), "--out", tmp_path / "page.html")
    assert done.exit_code == 2
    assert "without an auxiliary task" in done.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "mnist-cnn-rd"), "did you mean mnist-cnn-dr"),
        (("--limit", "2001"), "cannot take 2001"),
        (("--limit", "9"), "--limit"),
    ],
)
def test_bad_usage(tmp_path, idle, arguments, message):
    done = call(*arguments, "--out", tmp_path / "page.html")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_help_has_an_example():
    assert "soap demo --out soap-demo.html" in call("--help").stdout
