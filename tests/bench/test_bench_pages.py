"""docs/performance.md and docs/scale.md hold what the rows say, and the plot draws every axis."""

import copy
import json
import shlex
from pathlib import Path

import page_performance as pages
import pytest
import torch

from soap import recipes
from soap._runtime.cuda_graphs import MIN_ROWS_DETERMINISTIC
from soap.bench.batches import bench_purify
from soap.bench.inputs import BenchSetup, load_bench_model
from soap.bench.training import bench_train
from soap.cli import load_command
from soap.report.drawing import png

SETUP = BenchSetup(device=torch.device("cpu"), rate=1e9)
DOCS, RESULTS = (Path(__file__).parents[2] / name for name in ("docs", "results"))


@pytest.fixture(scope="module")
def measured():
    return bench_purify(SETUP, load_bench_model("mnist-fcn-dr", SETUP.device), batch_size=2, repeats=1)


@pytest.fixture(scope="module")
def trained():
    small = {"epochs": 1, "steps": 3, "batch_size": 2}
    return [bench_train(SETUP, recipes.read("mnist-fcn-dr"), alone=alone, **small) for alone in (False, True)]


def on_gpu(row):
    return {**row, "provenance": {**row["provenance"], "device": "NVIDIA H200"}}


def test_the_commands_of_the_page_are_understood():
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("soap bench ")]
    group = load_command("bench")
    assert {line.split()[2] for line in lines} == set(group.commands)
    for line in lines:
        name, *arguments = shlex.split(line)[2:]
        group.commands[name].make_context(name, arguments)  # raises where an option is not known


def test_a_table_for_each_machine_with_the_later_of_equal_rows(measured):
    (kept,) = pages.latest([measured, measured])
    text = pages.rendered_performance("<!-- figures -->\nold\n<!-- /figures -->\n", [kept, on_gpu(kept)])
    assert text.count("### ") == 2
    assert "### NVIDIA H200" in text
    lines = [line for line in text.splitlines() if line.startswith("| purify")]
    assert len(lines) == 2
    assert "16 / 11 | 66 / 55" in lines[0]
    assert "pixels 100.00 %, eps 100.00 %, labels 100.00 %" in lines[0]


def test_training_alone_has_a_line_beside_that_against_the_plain_loop(trained):
    text = pages.rendered_performance("<!-- figures -->\n<!-- /figures -->\n", trained)
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| train")]
    both, ours = (dict(zip(pages.HEAD, line, strict=True)) for line in lines)
    assert both["plain, s"]
    assert both["equal"].startswith("first losses ")
    assert (ours["plain, s"], ours["plain / ours"], ours["passes ours"], ours["equal"]) == ("", "", "", " |")
    assert ours["ours, s"]


def test_the_scale_page_has_trainings_on_a_gpu_beside_the_plain_loop(trained):
    slow = copy.deepcopy(on_gpu(trained[0]))
    slow["paths"]["ours"]["images_per_second"] = 1234.0
    rows = [*trained, on_gpu(trained[0]), slow, on_gpu(trained[1])]
    text = pages.rendered_scale("<!-- measured -->\n<!-- /measured -->\n", rows)
    assert text.count("| `mnist-fcn-dr` |") == 1
    assert "| 1,234 |" in text  # the later of two that measured the same


def test_each_panel_shows_the_rows_that_differ_in_its_number_alone(measured):
    rows = [measured]
    for key, values in {"batch_size": (8, 32), "grid": (3, 21), "steps": (1, 2, 10)}.items():
        rows += [{**measured, "case": {**measured["case"], key: value}} for value in values]
    for key, wanted in (("batch_size", [2, 8, 32]), ("grid", [3, 11, 21]), ("steps", [1, 2, 5, 10])):
        assert [row["case"][key] for row in pages.along(rows, key)] == wanted
    figure = pages.draw(rows)
    assert [axes.get_xlabel() for axes in figure.axes] == list(pages.AXES.values())
    assert [len(line.get_xdata()) for axes in figure.axes for line in axes.lines] == [3, 3, 3, 3, 4, 4]
    assert png(figure).startswith(b"\x89PNG")


def test_the_paddings_of_the_library_are_those_that_were_measured_to_hold():
    lines = (RESULTS / "padding.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["padded"] in (None, MIN_ROWS_DETERMINISTIC)]
    assert {row["purifier"] for row in rows} == {"soap", "hedge", "anti-adversary", "defense-gan"}
    assert [found for row in rows for found in row["found"].values() if found["other"]] == []
