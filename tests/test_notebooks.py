"""The notebooks run as stored, and the HTML views of objects in them are escaped."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from run_notebooks import FOLDER, run_cell, run_notebook
from run_samples import sample_run

import soap
from soap.data import Dataset
from soap.evaluation.detection import DetectionReport, DetectionResult
from soap.evaluation.verdict import INVALID, WARNED, RobustnessVerdict

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
HOSTILE = '<script>alert("&")</script>'


def comparable(cell: dict) -> list[str]:
    """A cell's outputs without what differs on another processor: numbers, pixels, tensors, verdicts' reasons."""
    found = []
    for one in cell.get("outputs", ()):
        text = "".join(one["text"] if "text" in one else one["data"].get("text/html", one["data"]["text/plain"]))
        found += [*one.get("data", ()), re.sub(r"base64,[^\"]+|\(check .*|[\d.e+-]+", "#", text)]
    return found


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_those_of_a_run(path: Path, monkeypatch):
    monkeypatch.setenv("SOAP_COMMIT", "notebook")
    stored = json.loads(path.read_text())
    for kept, made in zip(stored["cells"], run_notebook(path)["cells"], strict=True):
        if "@misc" not in str(made):  # the key is a hash
            assert comparable(kept) == comparable(made)


def test_notebooks_are_valid_nbformat_4_small_and_linked():
    assert len(NOTEBOOKS) == 3
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 300_000
    page = (FOLDER.parent / "tutorial.md").read_text()
    for path in NOTEBOOKS:
        found = json.loads(path.read_text())
        assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
        assert found["metadata"]["kernelspec"]["name"] == "python3"
        ids = [cell["id"] for cell in found["cells"]]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("[a-zA-Z0-9-]{1,64}", one) for one in ids)
        for cell in found["cells"]:
            wanted = {"cell_type", "id", "metadata", "source"}
            assert cell.keys() == (wanted | {"execution_count", "outputs"} if cell["cell_type"] == "code" else wanted)
            for one in cell.get("outputs", ()):
                assert one["output_type"] in ("stream", "execute_result")
        assert f"notebooks/{path.name}" in page


def test_a_cell_prints_and_shows_its_last_expression():
    names: dict[str, object] = {}
    assert run_cell("x = 3\nprint(x)\nx + 1", names, "cell") == [
        {"output_type": "stream", "name": "stdout", "text": ["3\n"]},
        {"output_type": "execute_result", "metadata": {}, "data": {"text/plain": ["4"]}},
    ]
    assert run_cell("x = 4", names, "cell") == []
    with pytest.raises(ZeroDivisionError):
        run_cell("1 / 0", names, "cell")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return tags


def views(tmp_path: Path) -> dict[str, str]:
    x = torch.rand(12, 1, 6, 6)
    data = Dataset(
        name=HOSTILE, split="test", x=x, y=torch.zeros(12, dtype=torch.int64), classes=(HOSTILE,), sha256="0" * 64
    )
    one = DetectionResult(
        attack=HOSTILE, adaptive=True, auroc=None, fpr=0.01, threshold=1.0, tpr=0.5, clean_accuracy=0.9, correct=1, n=2,
        n_adversarial=1, seconds=1.0,
    )  # fmt: skip
    detection = DetectionReport(defence=HOSTILE, data="d", score=HOSTILE, eps=0.1, results=(one,), rows=())
    report = sample_run(tmp_path / "run", data, name=HOSTILE, standing={"transfer": 7, "straight-through": 5})
    return {"data": data._repr_html_(), "detection": detection._repr_html_(), "report": report._repr_html_()}


def test_views_are_tables_whose_text_is_escaped(tmp_path):
    for name, html in views(tmp_path).items():
        tags = parsed(html)
        assert "script" not in tags.seen, name
        assert "table" in tags.seen
        assert HOSTILE in tags.text, name
        assert ("img" in tags.seen) == (name == "data")


def test_the_view_of_a_void_report_shows_no_accuracy_under_attack(tmp_path):
    report = sample_run(tmp_path / "run", soap.data.load("mnist-mini").take(20))
    warned, void = (replace(report, verdict=RobustnessVerdict(name=name, reasons=())) for name in (WARNED, INVALID))
    clean = [f"{100 * row.accuracy:.1f}" for row in report.rows if row.attack.name == "clean"]
    shown, hidden = (re.findall(r"(\d+\.\d) \[", parsed(one._repr_html_()).text) for one in (warned, void))
    assert hidden == clean
    assert len(shown) > len(clean)


def test_the_view_of_purified_images_has_both_and_rows_of_a_table_none():
    x = torch.rand(3, 1, 8, 8)
    hedge = soap.purifiers.Hedge(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)), eps=0.1, steps=2)
    out = hedge(x)
    assert torch.equal(out.before, x)
    html = out._repr_html_()
    assert "img" in parsed(html).seen
    assert f"{float(out.loss_after.mean()):.4g}" in html
    rows = soap.Purified(x=torch.rand(3, 4), eps=torch.ones(3), loss_before=torch.ones(3), loss_after=torch.zeros(3))
    assert "img" not in parsed(rows._repr_html_()).seen
