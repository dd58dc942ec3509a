"""`soap tune`: settings for a model on data of one's own, as a table, a file and a picture."""

import json
import tomllib
from dataclasses import asdict

import pytest

import soap
from soap.evaluation.tuning import tune

TRIAL = ("tune", "mnist-fcn-dr", "--data", "mnist-mini", "--limit", "12")


def test_the_choice_is_printed_as_a_recipe_section(run, tmp_path):
    done = run(*TRIAL, "--eps", "0.3")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines() if line.strip()]
    tried = [line for line in lines if line[0].replace(".", "").isdigit()]
    assert len(tried) == 6
    assert sum(line[-1] == "chosen" for line in tried) == 1
    assert "upper bound" in done.out
    section = tomllib.loads(done.out[done.out.index("[purifier]") :])["purifier"]
    folder = tmp_path / "runs" / "tune-mnist-fcn-dr"
    chosen = json.loads((folder / "tune.json").read_text())["chosen"]
    assert section == {key: chosen[key] for key in ("step_size", "steps", "grid")}
    assert {path.name for path in folder.iterdir()} == {"tune.json", "tune.png", "tune.svg"}
    assert "tune.png" in done.err


def test_json_equals_the_result_of_the_library(run):
    got = run(*TRIAL, "--json", "--quiet", "--out", "here", "--seed", "3").json  # the paper's radius by default
    found = tune(soap.load("mnist-fcn-dr"), soap.data.load("mnist-mini", "train"), 0.3, limit=12, seed=3)
    assert got["purifier"] == json.loads(json.dumps(asdict(found.purification)))
    assert (got["elbow"], got["eps_adv"], got["n"], got["helps"]) == (found.best.elbow, 0.3, 12, found.helps)
    assert got["accuracy"]["attacked"] == {"bare": found.bare_attacked, "purified": found.best.attacked_accuracy}
    assert got["files"] == ["here/tune.json", "here/tune.png", "here/tune.svg"]


def test_a_folder_of_images_and_a_fraction(run, digits):
    done = run("tune", "mnist-fcn-dr", "--data", digits, "--eps", "16/255", "--json", "--quiet")
    assert done.code == 0
    assert (done.json["n"], done.json["data"]) == (3, "digits")
    assert done.json["eps_adv"] == pytest.approx(16 / 255)


def test_it_reports_when_purification_does_not_help(run):
    done = run("tune", "mnist-fcn-dr", "--data", "mnist-mini", "--limit", "5", "--eps", "1/1000")  # undoes nothing
    assert done.code == 0
    assert "Purification does not help" in done.out
    assert "upper bound" not in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("tune", "mnist-fcn-no-def", "--data", "mnist-mini"), 2, "without an auxiliary task"),
        (("tune", "mnist-fcn", "--data", "mnist-mini"), 2, "did you mean mnist-fcn-dr"),
        ((*TRIAL, "--eps", "0"), 2, "eps is 0.0"),
        ((*TRIAL, "--eps", "much"), 2, "not a number or a fraction"),
        ((*TRIAL, "--split", "tset"), 2, "did you mean test"),
        ((*TRIAL, "--limit", "0"), 2, "greater than or equal to 1"),
        (("tune", "mnist-fcn-dr", "--data", "no/where"), 1, "no such file or folder"),
        ((*TRIAL, "--out", "file"), 1, "is a file, expected a folder"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, code, words):
    (tmp_path / "file").write_text("in the way")
    done = run(*arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
