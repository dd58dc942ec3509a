"""`soap bench`: each subcommand end to end on a few images, and bad usage."""

import json

import page_performance
import pytest

SMALL = ("--model", "mnist-fcn-dr", "--device", "cpu", "--repeats", "1")


@pytest.fixture(autouse=True)
def known_rate(request, monkeypatch):
    """One test measures the rate of the device; the others use a fixed one to save a second."""
    if request.node.name != "test_the_printed_table":
        monkeypatch.setattr("soap.bench.command.measure_rate", lambda *_: 1e11)


def rows(run, *arguments):
    done = run("bench", *arguments, "--json", "-q")
    assert (done.code, done.err) == (0, "")
    assert done.json["schema"] == "soap/1"
    assert done.json["command"] == f"bench {arguments[0]}"
    return done.json["rows"]


def check(row, *paths):
    assert list(row["paths"]) == ["ours", *paths]
    assert list(row["agreement"]) == [*paths]
    for path in row["paths"].values():
        seconds = path["seconds"]
        assert 0 < seconds["fastest"] <= seconds["lower_quartile"] <= seconds["median"] <= seconds["upper_quartile"]
        assert path["images_per_second"] > 0
        assert path["passes"]["forward"] > 0
    assert row["paths"]["ours"]["ratio"] == 1
    assert row["floor"]["seconds"] > 0
    assert row["share"] == pytest.approx(row["floor"]["seconds"] / row["paths"]["ours"]["seconds"]["median"])
    assert row["provenance"]["commit"] == "test"


def test_purify(run, tmp_path):
    found = rows(run, "purify", *SMALL, "--batch-size", 1, "--batch-size", 4, "--results", "kept/rows.jsonl")
    assert [row["case"]["batch_size"] for row in found] == [1, 4]
    for row in found:
        check(row, "plain")
        assert row["agreement"]["plain"]["eps"] == row["agreement"]["plain"]["labels"] == 1
        assert row["agreement"]["plain"]["pixels"] >= 0.999
    kept = (tmp_path / "kept" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in kept] == found


def test_other_grid_sizes_and_steps(run):
    found = rows(run, "purify", *SMALL, "--batch-size", 2, "--radii", 2, "--radii", 11, "--steps", 1, "--steps", 5)
    cases = [(row["case"]["grid"], row["case"]["steps"]) for row in found]
    assert cases == [(2, 1), (11, 1), (2, 5), (11, 5)]
    assert [row["paths"]["ours"]["passes"]["forward"] for row in found] == [2, 2, 6, 16]


def test_the_printed_table(run):
    done = run("bench", "purify", *SMALL, "--batch-size", 2, "--results", "rows.jsonl")
    assert done.code == 0
    head = "purify mnist-fcn-dr (weights: trained) on mnist-mini/test: batch size 2, steps 5, grid 11"
    assert done.out.startswith(head)
    assert "ours against plain: pixels 100.0 %, eps 100.0 %, labels 100.0 %" in done.out
    for said in ("images/s", "time / ours", "floor: ", "% of its speed"):
        assert said in done.out
    assert done.err == "The rows are in rows.jsonl.\n"


@pytest.mark.parametrize(
    ("attack", "paths"),
    [("pgd", ["plain", "foolbox"]), ("deepfool", ["foolbox"]), ("cw", ["foolbox"])],
)
def test_attack(run, attack, paths):
    (row,) = rows(run, "attack", *SMALL, "--attack", attack, "--steps", 3, "--batch-size", 4)
    check(row, *paths)
    assert row["case"]["steps"] == 3
    if attack != "cw":
        assert row["agreement"]["foolbox"]["pixels"] >= 0.99


def test_without_foolbox_only_the_reference_is_measured(run, monkeypatch):
    monkeypatch.setattr("soap.bench.batches.foolbox_installed", lambda: False)
    (row,) = rows(run, "attack", *SMALL, "--steps", 2, "--batch-size", 2)
    check(row, "plain")
    refused = run("bench", "attack", *SMALL, "--attack", "cw", "--steps", 2, "--batch-size", 2)
    assert refused.code == 2
    assert "CarliniWagner is measured against foolbox, which is not installed" in refused.err


def test_train(run):
    small = ("--model", "mnist-fcn-dr", "--device", "cpu", "--steps", 4, "--batch-size", 8)
    (row,) = rows(run, "train", *small, "--epochs", 2)
    check(row, "plain")
    assert row["case"] == {
        "batch_size": 8, "steps": 4, "epoch_steps": 7500, "precision": "fp32", "compiled": "false"
    }  # fmt: skip
    assert row["paths"]["ours"]["seconds"]["repeats"] == 2
    assert row["paths"]["ours"]["passes"] == {"forward": 1, "backward": 1}
    losses = row["agreement"]["plain"]
    assert losses["first_loss_ours"] == pytest.approx(losses["first_loss_plain"], rel=0.1)
    assert "4 steps were timed and scaled to the 7500 of an epoch." in row["notes"]


def test_train_alone_a_row_for_each_recipe(run, tmp_path):
    models = ("mnist-fcn-dr", "mnist-fcn-pgd-at")
    small = ("--device", "cpu", "--steps", 3, "--batch-size", 4, "--epochs", 2, "--results", "rows.jsonl")
    found = rows(run, "train", "--alone", *(word for model in models for word in ("--model", model)), *small)
    assert [row["model"] for row in found] == [*models]
    for row in found:
        assert list(row["paths"]) == ["ours"]
        assert row["agreement"] == {}
        ours = row["paths"]["ours"]
        assert (ours["ratio"], ours["passes"], ours["seconds"]["repeats"]) == (1, None, 2)
        assert 0 < ours["seconds"]["fastest"] <= ours["seconds"]["mean"]
        assert row["share"] > 0
        assert row["case"]["steps"] == 3
        assert "3 steps were timed and scaled to the 15000 of an epoch." in row["notes"]
    kept = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in kept] == found


def test_training_alone_prints_one_path(run):
    done = run(
        "bench", "train", "--alone", "--model", "mnist-fcn-dr", "--device", "cpu", "--steps", 3, "--batch-size", 4
    )
    assert done.code == 0
    assert done.out.startswith("train mnist-fcn-dr (weights: random, seed 0) on ")
    for said in ("mean s", " ± 0 ", "not counted", "floor: "):
        assert said in done.out
    assert "plain" not in done.out


def test_train_by_a_user_recipe_on_a_whole_epoch(run, tmp_path):
    from soap import recipes

    text = recipes.read("mnist-fcn-pgd-at").text.replace('data = "mnist"', 'data = "mnist-mini"')
    (tmp_path / "own.toml").write_text(text.replace("steps = 40", "steps = 2"))
    (row,) = rows(run, "train", "--model", "own.toml", "--device", "cpu", "--batch-size", 2500)
    assert (row["case"]["steps"], row["case"]["epoch_steps"]) == (4, 4)
    assert row["inputs"] == "mnist-mini/train"
    assert row["paths"]["plain"]["passes"] == {"forward": 3, "backward": 3}
    assert len(row["notes"]) == 1


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("purify --model mnist-fcn-d", 2, "unknown model or recipe 'mnist-fcn-d'"),
        ("purify --model mnist-fcn-no-def", 2, "without an auxiliary task"),
        ("purify --model missing.safetensors", 1, "missing.safetensors: no such file"),
        ("purify --batch-size 0", 2, "--batch-size"),
        ("purify --repeats 0", 2, "--repeats"),
        ("purify --results taken.jsonl", 1, "taken.jsonl, line 1"),
        ("purify --results taken.jsonl/rows.jsonl", 1, "taken.jsonl is a file, expected a folder"),
        ("purify --results .", 1, "it is a folder, expected a file"),
        ("attack --attack pdg", 2, "unknown attack 'pdg'; did you mean pgd?"),
        ("attack --steps 0", 2, "--steps"),
        ("train --model nothing", 2, "unknown recipe 'nothing'"),
        ("train --model mnist-fcn-dr --model nothing", 2, "unknown recipe 'nothing'"),
        ("train --steps 0", 2, "--steps"),
        ("purify --radii 1", 2, "--radii"),
        ("train --precision fp16", 2, "precision is 'fp16'"),
        ("train --precision bf16 --device cpu", 2, "precision 'bf16' is for GPUs"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(run, tmp_path, line, code, said):
    (tmp_path / "taken.jsonl").write_text("not a row\n")
    done = run("bench", *line.split())
    assert said in done.err
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken.jsonl"]


def test_the_suite_in_both_modes(run):
    """A network that every attack breaks."""
    small = ("--data", "mnist-mini", "--limit", 2, "--steps", 1, "--queries", 4, "--device", "cpu")
    (row,) = rows(run, "suite", "mnist-fcn-no-def", *small, "--results", "rows.jsonl")
    assert row["case"] == {"images": 2, "steps": 1, "queries": 4}
    ours, full = row["paths"]["ours"], row["paths"]["full"]
    assert full["ratio"] == pytest.approx(full["seconds"]["median"] / ours["seconds"]["median"])
    for path in (ours, full):
        assert path["worst"] == 0
        assert 0 < path["attack_seconds"] < path["seconds"]["median"]
    assert row["agreement"] == {"full": {"labels": 1}}
    text = page_performance.rendered_performance("<!-- figures -->\n<!-- /figures -->\n", [row])
    assert "| `mnist-fcn-no-def` | images 2, steps 1, queries 4 |" in text
