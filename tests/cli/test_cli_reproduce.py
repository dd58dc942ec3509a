"""`soap reproduce`: lists, tables, figures, and running what is missing."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from paper_rows import recipes_read_once, row_for

import soap
from soap.paper import rows
from soap.paper.claims import CLAIMS, claims_about
from soap.paper.figure_claims import FIGURE_CHECKS
from soap.paper.figure_data import FIGURES
from soap.paper.job_runner import JobsResult
from soap.paper.tables import TABLES, PaperTable
from soap.report.row_text import eps_text
from soap.results import Store

__all__ = ["recipes_read_once"]
CHECKED = [name for name, claim in CLAIMS.items() if claim.numbers or name in FIGURE_CHECKS]
WANTED = TABLES["table-1"].cells["dr-min-aux", "fcn", "pgd"].query


@pytest.fixture(autouse=True, scope="module")
def rows_read_once():
    """Read the zoo's rows once: it takes half a second a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "read_folder", cache(rows.read_folder))
        yield


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """As from an installed package: no rows but the zoo's."""
    monkeypatch.setattr("soap.paper.command.results_folder", lambda: None)  # first: it imports the module
    monkeypatch.setattr(rows, "results_folder", lambda: None)


def test_the_list_has_every_table_and_figure_and_the_claims(run):
    done = run("reproduce", "--json")
    assert done.code == 0
    assert [entry["name"] for entry in done.json["tables"]] == list(TABLES)
    assert [entry["name"] for entry in done.json["figures"]] == list(FIGURES)
    first = done.json["tables"][0]
    assert first["wanted"] == 80
    assert first["done"] + sum(first["missing"].values()) == 80
    assert done.json["tables"][4]["wanted"] is None  # from the code
    assert all(entry["jobs"] for entry in done.json["tables"] if entry["missing"])
    third = done.json["tables"][2]  # five Wide-ResNets of 200 epochs are missing, each under five attacks
    assert third["jobs"] >= 30
    assert 100 < third["estimated_hours"] < 1000
    text = run("reproduce").out
    assert all(f" {name} " in text for name in (*TABLES, *FIGURES))
    assert f"{first['done']} of 80" in text
    counts = done.json["claims"]
    assert list(counts) == ["did_not_hold", "held", "not_decided"]
    assert sum(counts.values()) == len(CHECKED)
    assert f"{counts['did_not_hold']} did not hold, {counts['held']} held, " in text


def test_a_table_from_the_bundled_rows(run):
    (row,) = WANTED.found_in(Store(soap.zoo.folder() / "mnist-fcn-dr.jsonl").read())
    done = run("reproduce", "table-1", "--json")
    (cell,) = (c for c in done.json["cells"] if (c["row"], c["group"], c["column"]) == ("dr-min-aux", "fcn", "pgd"))
    assert cell["ours"] == pytest.approx(100 * row.accuracy)
    assert (cell["printed"], cell["n"], cell["recipe"]) == (61.88, 10_000, "mnist-fcn-dr")
    assert cell["difference"] == pytest.approx(100 * row.accuracy - 61.88)
    assert cell["result_rows"] == [row.key]
    text = run("reproduce", "table-1").out
    assert f"{100 * row.accuracy:.2f}" in text
    assert "61.88" in text
    assert "Defense-GAN" in text


def test_rows_of_the_users_own_file_are_shown_too(run, tmp_path, monkeypatch):
    monkeypatch.setattr("soap.paper.command.committed_rows", list)  # whether the recipe has bundled rows or not
    wanted = TABLES["table-1"].cells["pgd-at", "fcn", "pgd"].query
    Store(tmp_path / "mine.jsonl").append(row_for(wanted, 5000, training="7 epochs, seed 0, fp32"))
    done = run("reproduce", "table-1", "--results", "mine.jsonl")
    line = next(line for line in done.out.splitlines() if "PGD AT" in line)
    assert re.search(r"50\.00 / 57\.07 \(−7\.07\)†<sup>\d</sup>", line)  # noqa: RUF001
    assert "mnist-fcn-pgd-at 7 of 100" in done.out
    assert "50.00" not in run("reproduce", "table-1").out


def test_only_narrows(run):
    done = run("reproduce", "table-2", "--only", "cifar10-resnet18-lc", "--json")
    assert {cell["recipe"] for cell in done.json["cells"]} == {"cifar10-resnet18-lc"}
    assert len(done.json["cells"]) == 30
    listed = run("reproduce", "--only", "mnist-cnn", "--json").json
    assert [entry["name"] for entry in listed["tables"]] == ["table-1", "table-4", "table-8"]
    assert [entry["name"] for entry in listed["figures"]] == ["figure-7", "figure-8", "ablation-leaking"]
    assert "claims" not in listed  # they are judged by all rows


@pytest.mark.parametrize("name", ["table-5", "table-6", "table-7"])
def test_tables_from_the_code(run, name):
    done = run("reproduce", name, "--json")
    assert done.json["rows"]
    text = run("reproduce", name).out
    assert all(cell in text for line in done.json["rows"] for cell in line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tabel-2",), "unknown table or figure 'tabel-2'; did you mean table-2"),
        (("--only", "cifar11"), "unknown recipe 'cifar11'; did you mean"),
        (("table-2", "--only", "mnist-fcn"), "table-2 has no cell of a recipe that starts with 'mnist-fcn'"),
        (("table-5", "--only", "mnist-fcn"), "leave out --only"),
        (("claims", "--only", "mnist-fcn"), "claims are judged by all rows; leave out --only"),
        (("claims", "--run"), "claims are judged by all rows; leave out --only, and use --run"),
        (("--limit", "cw"), "--limit is 'cw'; expected a number of images"),
        (("--limit", "cw=0"), "--limit is 'cw=0'"),
        (("--limit", "cv=10"), "unknown attack 'cv'; did you mean cw"),
        (("--precision", "fp8"), "precision is 'fp8'"),
    ],
)
def test_bad_input(run, arguments, message):
    done = run("reproduce", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_damaged_file_of_rows_is_named(run, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    done = run("reproduce", "--results", "bad.jsonl")
    assert done.code == 1
    assert "bad.jsonl, line 1" in done.err


def test_a_figure_is_drawn_with_its_claims_and_what_it_lacks(run, tmp_path):
    done = run("reproduce", "figure-5", "--out", "drawn")
    assert done.code == 0
    for claim in claims_about("figure-5"):
        assert f"- {claim.text} (section 4.1) **○ not decided.** Missing: rows of " in done.out
        assert f"*Rule: {claim.rule}.*" in done.out
    assert "Missing: no rows of mnist-fcn-dr" in done.out
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        path = tmp_path / "drawn" / f"figure-5.{kind}"
        assert path.read_bytes().startswith(start)
        assert f"drawn/figure-5.{kind}" in done.out
    output = run("reproduce", "figure-5", "--out", "drawn", "--json").json
    assert (output["done"], output["wanted"]) == (0, 3)
    assert [one["name"] for one in output["verdicts"]] == [claim.name for claim in claims_about("figure-5")]
    assert {one["held"] for one in output["verdicts"]} == {None}


def test_what_is_no_claim_gets_no_verdict(run):
    done = run("reproduce", "figure-4", "--out", "drawn")
    assert "nothing is claimed of single images. (section 4.1)" in done.out
    assert "Rule:" not in done.out
    assert run("reproduce", "figure-4", "--out", "drawn", "--json").json["verdicts"] == []


def test_claims_are_judged_by_the_rows_at_hand(run, tmp_path):
    cells = TABLES["table-1"].cells
    numbers = {"dr-min-aux": 6500, "fgsm-at": 8000, "pgd-at": 5000}
    for method, correct in numbers.items():
        wanted = cells[method, "fcn", "fgsm"].query
        row = row_for(
            wanted, correct, date="2099-01-01T00:00:00+00:00", weights="f", training="1000 epochs, seed 0, fp32"
        )
        Store(tmp_path / "mine.jsonl").append(row)
    done = run("reproduce", "claims", "--results", "mine.jsonl", "--json")
    assert done.code == 0
    claims = {claim["name"]: claim for claim in done.json["claims"]}
    assert list(claims) == CHECKED
    fcn = claims["fcn-above-adversarial-training"]
    assert (fcn["held"], fcn["printed_held"], fcn["about"], fcn["section"]) == (False, False, ["table-1"], "4.1")
    assert fcn["evidence"].startswith("Against it: FCN, SOAP-DR: FGSM 65.00 against FGSM AT 80.00.")
    assert "66.85 against FGSM AT 80.57" in fcn["printed_evidence"]
    assert claims["few-large-steps"]["printed_held"] is None
    assert done.json["did_not_hold"] == sum(claim["held"] is False for claim in claims.values())
    text = run("reproduce", "claims", "--results", "mine.jsonl").out
    assert all(f"| {claim['text']} (section".replace("|beta|", "\\|beta\\|") in text for claim in claims.values())
    assert text.index("✗ Did not hold") < text.index(fcn["text"]) < text.index("○ Not decided: ")
    assert f"| {fcn['evidence']} | did not hold: FCN, SOAP-DR: FGSM 66.85 against FGSM AT 80.57 |" in text


# --- Running ------------------------------------------------------------------------------------------------------


def by_batch(defence):
    return replace(defence, eps="min-aux-batch", settings={**defence.settings, "eps": "min-aux-batch"})


def test_run_measures_what_is_missing_once(run, monkeypatch, tmp_path):
    known = [row for row in rows.committed_rows() if (row.model, row.attack.name) != ("mnist-fcn-dr", "fgsm")]
    known += [  # whether they are measured yet or not
        replace(row, defence=by_batch(row.defence)) for row in known if row.defence.eps == "min-aux"
    ]
    monkeypatch.setattr("soap.paper.command.committed_rows", lambda: known)
    mini = soap.data.load("mnist-mini")
    monkeypatch.setattr(soap.data, "load", lambda name, split, root=None: replace(mini, name=name))
    arguments = ("reproduce", "table-1", "--only", "mnist-fcn-dr", "--run", "--limit", "1000", "--device", "cpu")
    done = run(*arguments, "--json")
    assert (done.code, done.json["finished"]) == (0, True)
    assert (done.json["done"], done.json["wanted"]) == (20, 20)
    assert "1 of 1 jobs done, 4 new rows in runs/reproduce.jsonl" in done.err
    measured = Store(tmp_path / "runs" / "reproduce.jsonl").read()
    assert [(row.attack.name, eps_text(row.defence), row.n) for row in measured] == [
        ("fgsm", choice, 1000) for choice in ("none", "min-aux", "oracle", "min-aux-batch")
    ]  # fmt: skip
    cells = {cell["row"]: cell for cell in done.json["cells"] if cell["column"] == "fgsm"}
    assert cells["dr-min-aux"]["ours"] == pytest.approx(100 * measured[1].accuracy)
    assert "§" in cells["dr-min-aux"]["signs"]
    assert "0 of 0 jobs done, 0 new rows" in run(*arguments).err


def test_run_without_the_data_says_how_to_get_it(run):
    done = run("reproduce", "table-4", "--only", "mnist-fcn-dr", "--run")
    assert done.code == 0
    assert "Skipped mnist-fcn-dr: substitute-fcn" in done.err
    assert "soap data" in done.err
    assert "0 of 2 jobs done" in done.err


def test_a_purifiers_prior_names_its_cells_and_what_it_lacks(run):
    done = run("reproduce", "table-1", "--only", "defense-gan", "--json")
    assert {(cell["row"], cell["recipe"]) for cell in done.json["cells"]} == {
        ("defense-gan", "mnist-fcn-no-def"), ("defense-gan", "mnist-cnn-no-def")
    }  # fmt: skip
    done = run("reproduce", "table-1", "--only", "defense-gan", "--run", "--limit", "none=2000")
    assert done.code == 0
    assert "Skipped mnist-fcn-no-def: none on 2,000 images, bare, defense-gan-mnist: " in done.err
    skipped = [line for line in done.err.splitlines() if line.startswith("Skipped")]
    assert len(skipped) >= 10
    assert all("soap data download mnist" in line for line in skipped)


def test_options_reach_the_runner_and_a_stop_is_told(run, monkeypatch):
    seen = {}

    def plan(wanted, rows, **options):
        if "seeds" in options:  # of --run; the list estimates its cost by another plan
            seen.update(options, wanted=list(wanted))
        return []

    def fake(jobs, runner, **options):
        seen.update(vars(runner))
        return JobsResult(jobs=4, done=1, skipped={}, rows=[])

    monkeypatch.setattr("soap.paper.command.plan_jobs", plan)
    monkeypatch.setattr("soap.paper.command.run_jobs", fake)
    done = run("reproduce", "--run", "--only", "cifar10-resnet18-lc", "--epochs", "30", "--trainings", "2",
               "--seed", "1", "--limit", "cw=1000", "--limit", "5000", "--precision", "bf16", "--compile",
               "--batch-size", "77", "--runs", "elsewhere", "--data-root", "data")  # fmt: skip
    assert done.code == 130
    assert "run the same command again" in done.err
    assert (seen["epochs"], list(seen["seeds"]), seen["precision"], seen["compiled"]) == (30, [1, 2], "bf16", True)
    assert (seen["limit"]["cw"], seen["limit"]["pgd"], seen["batch_size"]) == (1000, 5000, 77)
    assert (str(seen["runs"]), str(seen["data_root"])) == ("elsewhere", "data")
    assert str(seen["store"].path) == "runs/reproduce.jsonl"
    tables = [table for table in TABLES.values() if isinstance(table, PaperTable)]
    wanted = {w for table in tables for w in table.queries if w.recipe == "cifar10-resnet18-lc"}
    assert set(seen["wanted"]) == wanted
    assert len(seen["wanted"]) == len(wanted) == 32  # 30 of Table 2, 2 of Table 9


def test_run_measures_a_figure_of_the_chosen_models(run, monkeypatch):
    mini = soap.data.load("mnist-mini")
    monkeypatch.setattr(soap.data, "load", lambda name, split, root=None: replace(mini, name=name))
    arguments = ("reproduce", "figure-3", "--run", "--only", "mnist-fcn-dr", "--limit", "20", "--device", "cpu")
    done = run(*arguments, "--out", "drawn", "--json")
    assert (done.code, done.json["done"], done.json["wanted"]) == (0, 1, 3)
    assert "1 of 1 jobs done, 0 new rows" in done.err
    assert "0 of 0 jobs done" in run(*arguments, "--out", "drawn").err


def test_the_json_is_json_for_every_table(run):
    for name in TABLES:
        done = run("reproduce", name, "--json")
        assert json.loads(done.out)["name"] == name
