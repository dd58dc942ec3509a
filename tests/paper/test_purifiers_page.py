"""docs/purifiers.md is what the committed rows and runs say, and what it tells the reader to type works."""

import json
import re
from dataclasses import replace
from pathlib import Path

import page_purifiers as tool
import pytest
import torch
from paper_rows import row_for
from render_pages import DOCS, RESULTS

import soap
from soap import zoo
from soap._files import tensor_files
from soap.attacks import PGD
from soap.evaluation import fingerprint
from soap.evaluation.verdict import INVALID
from soap.paper.rows import committed_rows
from soap.paper.tables import CellQuery
from soap.recipes import generative
from soap.recipes.purifiers import NAMES
from soap.results import Store
from soap.specs import DefenceSpec, attack_spec

PAGE = (DOCS / "purifiers.md").read_text(encoding="utf-8")
MODEL = "cifar10-resnet18-pgd-at"


def test_every_purifier_has_its_line_and_is_told_of():
    assert {purifier for purifiers in tool.PURIFIERS_BY_MODEL.values() for purifier in purifiers} == {"none", *NAMES}
    assert all(f"| `{name}` |" in PAGE for name in NAMES)
    for model in tool.PURIFIERS_BY_MODEL:
        assert fingerprint(zoo.load(model))  # it is bundled, so that the reader can repeat it


def line(rows, purifier, results=Path("nowhere"), model=MODEL):
    return next(one for one in tool.lines(rows, results) if (one.model, one.purifier) == (model, purifier))


def figures(purifier, *, n=1000, **others):
    clean, pgd = (CellQuery(recipe=MODEL, attack=attack) for attack in ("none", "pgd"))
    label = {"defence": tool.label(MODEL, purifier), **others}
    return [row_for(clean, 3 * n // 4, n=n, **label), row_for(pgd, n // 4, n=n, **label)]


def test_without_rows_it_says_so():
    text = tool.table([*tool.lines([], Path("nowhere"))])
    cells = [cell for line in text.splitlines()[2:] if line.startswith("|") for cell in line.split(" | ")[2:]]
    assert {cell.strip("| ") for cell in cells} == {tool.ABSENT}
    assert "not measured" in text


def test_a_line_shows_its_own_rows_and_the_cost_of_the_purifier():
    rows = [*figures("none"), *figures("hedge")]
    assert line(rows, "hedge").cells()[1:4] == ("Hedge", "75.0 [72.2, 77.6]", "25.0 [22.4, 27.8]")
    assert line(rows, "hedge").cells()[4:] == (
        "1,000",
        tool.ABSENT,
        tool.ABSENT,
        "1 ms (a machine)",
    )  # a second for a thousand
    assert line(rows, "none").cells()[-1] == tool.ABSENT
    assert line(rows, "anti-adversary").pgd is None


@pytest.mark.parametrize(
    "others",
    [
        {
            "defence": DefenceSpec(
                name="Hedge", settings={"eps": 0.1, "step_size": 0.01, "steps": 20, "seed": 0}, eps=0.1
            )
        },
        {"protocol": "black-box"},
        {"attack": attack_spec("pgd", PGD(eps=0.1, step_size=0.1, steps=1))},
        {"data": "cifar100"},
        {"training": "25 epochs, seed 1, fp32"},
    ],
)
def test_rows_of_other_settings_are_not_shown(others):
    assert line(figures("hedge"), "hedge").pgd is not None
    assert line(figures("hedge", **others), "hedge").pgd is None


def test_more_images_count_before_a_later_date():
    early, late = figures("hedge", n=2000), figures("hedge", date="2027-01-01T00:00:00+00:00")
    assert line([*early, *late], "hedge").pgd.n == 2000
    again = figures("hedge", n=2000, date="2027-01-02T00:00:00+00:00")
    assert line([*again, *early], "hedge").pgd.provenance.date[:4] == "2027"


def suite(folder, defences, name="full", verdict="CHECKS WARNED"):
    for defence in defences:
        for row in figures(defence):
            what = "worst" if row.attack.name == "pgd" else "clean"
            attack = replace(row.attack, name=what, suite=name)
            Store(folder / "rows.jsonl").append(replace(row, protocol="worst", attack=attack))
    content = json.dumps({"verdict": {"name": verdict, "reasons": ["check 9, restarts: more break"]}})
    (folder / "findings.json").write_text(content)
    (folder / "asked.json").write_text(json.dumps({"command": f"soap evaluate {MODEL} --suite {name}"}))


def test_the_worst_case_is_that_of_the_purifiers_own_run(tmp_path):
    suite(tmp_path / "purifiers" / f"{MODEL}-hedge", ["hedge", "none"])
    shown = line([], "hedge", tmp_path)
    assert (shown.worst.correct, shown.cells()[4:7]) == (
        250,
        (tool.ABSENT, "25.0 [22.4, 27.8], n = 1,000", "CHECKS WARNED"),
    )
    assert line([], "none", tmp_path).worst is None
    suite(tmp_path / "adaptive" / MODEL, ["hedge", "none"])  # a purifier's run says nothing of the model bare
    assert line([], "none", tmp_path).worst is None
    suite(tmp_path / "bare" / "adaptive" / MODEL, ["none"])
    assert line([], "none", tmp_path / "bare").worst.correct == 250


def test_a_part_of_the_suite_is_named_and_every_run_has_its_reasons_and_command(tmp_path):
    assert tool.suites(tmp_path) == "None is measured yet."
    suite(tmp_path / "purifiers" / f"{MODEL}-hedge", ["hedge", "none"], name="straight-through")
    assert line([], "hedge", tmp_path).cells()[5] == "25.0 [22.4, 27.8], n = 1,000, straight-through alone"
    (told,) = tool.suites(tmp_path).splitlines()
    assert told.startswith(f"- `{MODEL}`, Hedge: CHECKS WARNED: check 9, restarts: more break. ")
    assert told.endswith(f"`soap evaluate {MODEL} --suite straight-through`")


def test_a_figure_that_a_check_voids_is_not_printed(tmp_path):
    suite(tmp_path / "purifiers" / f"{MODEL}-hedge", ["hedge"], name="straight-through", verdict=INVALID)
    assert line([], "hedge", tmp_path).cells()[5:7] == (f"{tool.ABSENT}, straight-through alone", INVALID)
    (told,) = tool.suites(tmp_path).splitlines()
    assert "INVALID: No accuracy under attack is shown, because a check failed (check 9, restarts: more break)" in told


def test_committed_figures_are_shown():
    rows = committed_rows()
    wanted = CellQuery(recipe="cifar10-resnet18-lc", attack="pgd", eps_pfy="min-aux")
    (found,) = (row for row in wanted.found_in(rows) if row.training.seed == 0)
    assert line(rows, "soap", RESULTS, "cifar10-resnet18-lc").pgd.correct == found.correct
    assert line(rows, "soap", RESULTS, "cifar10-resnet18-lc").worst is not None
    assert line(rows, "none", RESULTS).worst is not None


PRIORS = {
    "defense-gan-mnist": 'kind = "wgan"\nlatent = 3\nwidth = 2\n[purifier]\nsteps = 2\nstarts = 2',
    "pixeldefend-cifar10": 'kind = "pixelcnn"\nchannels = 4\nblocks = 1\nmixtures = 1\n[purifier]\neps = "1/255"',
}


def test_the_lines_with_a_prior_run(tmp_path, monkeypatch):
    """What the page says in passing, with small untrained priors in the place of the bundled."""
    for name, model in PRIORS.items():
        text = f'name = "{name}"\ndata = "mnist"\n[training]\nepochs = 1\nlr = 1e-3\n[model]\n{model}\n'
        weights = generative.build(generative.parse(text, name)).state_dict()
        tensor_files.save_tensors(tmp_path / f"{name}.safetensors", weights, {"recipe": text})
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path)
    told = [" ".join(words.split()) for words in re.findall(r"`((?:prior|purify) = [^`]+)`", PAGE)]
    assert len(told) == 2
    shapes = {"defense-gan-mnist": (1, 28, 28), "pixeldefend-cifar10": (3, 32, 32)}
    for name, kind in (("defense-gan-mnist", "DefenseGAN"), ("pixeldefend-cifar10", "PixelDefend")):
        assert name in PAGE
        names = {"soap": soap}
        for words in told:
            exec(words.replace("defense-gan-mnist", name).replace("DefenseGAN", kind), names)
        x = torch.rand(1, *shapes[name], generator=torch.Generator().manual_seed(0))
        assert names["purify"](x).x.shape == x.shape
