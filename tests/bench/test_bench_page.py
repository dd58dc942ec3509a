"""docs/performance.md is what the committed rows say, and its plot draws every axis."""

import copy
from pathlib import Path

import pytest
import torch

from soap import recipes
from soap._runtime.cuda_graphs import MIN_ROWS_DETERMINISTIC
from soap.bench import Rates, append, load_bench_model
from soap.bench import performance_page as tool
from soap.bench.purification import bench_purify
from soap.bench.results import ROW_SCHEMA
from soap.bench.training import bench_train
from soap.report.drawing import png

CPU = torch.device("cpu")
DOCS, RESULTS = (Path(__file__).parents[2] / name for name in ("docs", "results"))


@pytest.fixture(scope="module")
def measured():
    return bench_purify(
        load_bench_model("mnist-fcn-dr", CPU), Rates(operations=1e9, bytes=1e9), batch=2, device=CPU, repeats=1
    )


def variants(row, **cases):
    """The row with other values of one number of its case each."""
    made = [row]
    for key, values in cases.items():
        for value in values:
            made.append(copy.deepcopy(row))
            made[-1]["case"][key] = value
    return made


def test_the_plot_is_there():
    assert (DOCS / tool.PICTURE).is_file()


def test_the_commands_of_the_page_are_understood():
    import shlex

    from soap.cli import load_command

    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("soap bench ")]
    group = load_command("bench")
    assert {line.split()[2] for line in lines} == set(group.commands)
    for line in lines:
        name, *arguments = shlex.split(line)[2:]
        group.commands[name].make_context(name, arguments)  # raises where an option is not known


def test_a_table_for_each_machine_with_the_later_of_equal_rows(measured, tmp_path):
    row = measured.as_json()
    assert row["schema"] == ROW_SCHEMA
    append(tmp_path / "bench-a.jsonl", measured)
    append(tmp_path / "bench-b.jsonl", measured)
    append(tmp_path / "other.jsonl", measured)
    (kept,) = tool.committed_rows("bench", tmp_path)
    gpu = copy.deepcopy(kept)
    gpu["provenance"]["device"] = "NVIDIA H200"
    text = tool.tables([kept, gpu])
    assert text.count("### ") == 2
    assert "### NVIDIA H200" in text
    lines = [line for line in text.splitlines() if line.startswith("| purify")]
    assert len(lines) == 2
    assert "16 / 11 | 66 / 55" in lines[0]
    assert "pixels 100.00 %, eps 100.00 %, labels 100.00 %" in lines[0]
    tried = copy.deepcopy(kept)
    tried["case"]["variant"] = "upside down"
    document = "".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in ("figures", "paddings", "variants"))
    page = tool.rendered(document, [kept], [tried], [])
    assert "images/performance.png" in page
    assert "| upside down |" in page
    assert f"<!-- figures -->\n{tool.NO_ROWS}\n<!-- /figures -->\n" in tool.rendered(document, [], [], [])


def test_the_paddings_that_the_library_has_are_those_that_were_measured_to_hold():
    rows = [row for row in tool.committed_paddings(RESULTS) if row["padded"] in (None, MIN_ROWS_DETERMINISTIC)]
    assert {row["purifier"] for row in rows} == {"soap", "hedge", "anti-adversary", "defense-gan"}
    assert [found for row in rows for found in row["found"].values() if found["other"]] == []
    text = tool.paddings(tool.committed_paddings(RESULTS))
    assert "| `cifar10-resnet18-lc` | soap, stop | 128 | 0 / 37 of 37 |" in text
    assert "| `mnist-cnn-no-def` | defense-gan | not | 0 / 37 of 37 |" in text


def test_training_that_was_timed_alone_has_a_line_beside_that_against_the_plain_loop(tmp_path):
    small = {"device": CPU, "epochs": 1, "steps": 3, "batch": 2}
    for alone in (False, True):
        row = bench_train(recipes.read("mnist-fcn-dr"), Rates(operations=1e9, bytes=1e9), alone=alone, **small)
        append(tmp_path / "bench-a.jsonl", row)
    both, ours = tool.committed_rows("bench", tmp_path)
    lines = [line.split(" | ") for line in tool.tables([both, ours]).splitlines() if line.startswith("| train")]
    columns = [dict(zip(tool.HEAD, line, strict=True)) for line in lines]
    assert [bool(line["plain, s"]) for line in columns] == [True, False]
    assert columns[0]["equal"].startswith("first losses ")
    assert (columns[1]["plain / ours"], columns[1]["passes ours"], columns[1]["equal"]) == ("", "", " |")
    assert columns[1]["ours, s"]


def test_each_panel_shows_the_rows_that_differ_in_its_number_alone(measured):
    rows = variants(measured.as_json(), batch=(8, 32), grid=(3, 21), steps=(1, 2, 10))
    for key, wanted in (("batch", [2, 8, 32]), ("grid", [3, 11, 21]), ("steps", [1, 2, 5, 10])):
        assert [row["case"][key] for row in tool.along(rows, key)] == wanted
    figure = tool.draw(rows)
    assert [axes.get_xlabel() for axes in figure.axes] == list(tool.AXES.values())
    assert [len(line.get_xdata()) for axes in figure.axes for line in axes.lines] == [3, 3, 3, 3, 4, 4]
    assert png(figure).startswith(b"\x89PNG")
