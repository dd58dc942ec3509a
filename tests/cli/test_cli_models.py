"""`soap models`: bundled models with results measured with their weights, and the card of any model."""

import hashlib
import json
import shutil

import pytest

from soap import recipes, zoo
from soap._files import tensor_files
from soap.evaluation import fingerprint
from soap.report.model_cards import read_model_card
from soap.report.row_text import attack_text, eps_text, gradient_text, settings_text
from soap.results import Store


@pytest.fixture
def own_zoo(tmp_path, monkeypatch):
    """A zoo of one model without results."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    shutil.copy(zoo.folder() / "mnist-fcn-dr.safetensors", folder)
    monkeypatch.setattr(zoo, "folder", lambda: folder)
    return folder


def measure(run, results, *options):
    arguments = ("--data", "mnist-mini", "--limit", "10", "--results", results, *options)
    assert run("evaluate", "mnist-fcn-dr", *arguments).code == 0


def test_the_bundled_models_are_listed(run):
    listed = run("models", "--json")
    assert listed.code == 0
    names = [model["name"] for model in listed.json["models"]]
    assert {"mnist-fcn-dr", "mnist-cnn-dr"} <= set(names)
    assert listed.json["recipes"] == recipes.names()
    sizes = {model["name"]: model["parameters"] for model in listed.json["models"]}
    fcn = zoo.load("mnist-fcn-dr")
    assert sizes["mnist-fcn-dr"] == sum(parameter.numel() for parameter in fcn.parameters())
    table = run("models")
    assert all(name in table.out for name in names)
    assert f"{sizes['mnist-fcn-dr']:,}" in table.out
    assert "upper bounds" in table.err
    assert "cifar10-wide-resnet28-lc" in run("models", "-v").err


def test_a_model_without_results_is_listed_without_results(run, own_zoo):
    (model,) = run("models", "--json").json["models"]
    assert model["figures"] == {"none": None, "fgsm": None, "pgd": None}
    assert "No results yet" in run("models", "mnist-fcn-dr").out


def test_headlines_are_results_of_the_papers_attacks_on_the_models_data(run, own_zoo):
    rows = own_zoo / "mnist-fcn-dr.jsonl"
    measure(run, rows, "--attack", "none", "--attack", "fgsm")
    measure(run, rows, "--attack", "fgsm", "--eps", "0.01")  # not the paper's: no headline
    # The headline figures are those on the recipe's own data set, so these, on mnist-mini, are not among them ...
    assert run("models", "--json").json["models"][0]["figures"]["fgsm"] is None
    # ... but they are all on the card.
    card = run("models", "mnist-fcn-dr", "--json").json
    assert len(card["rows"]) == 6
    # Weights whose recipe names mnist-mini have them as headlines.
    tensors, metadata = tensor_files.load_tensors(own_zoo / "mnist-fcn-dr.safetensors")
    text = recipes.revised(recipes.parse(metadata["recipe"], "test"), data="mnist-mini").text
    tensor_files.save_tensors(own_zoo / "mnist-fcn-dr.safetensors", tensors, {**metadata, "recipe": text})
    figures = run("models", "--json").json["models"][0]["figures"]
    stored = {
        (attack_text(row.attack), eps_text(row.defence), settings_text(row.attack)): row for row in Store(rows).read()
    }
    assert figures["fgsm"]["correct"] == stored["fgsm", "min-aux", "FGSM(eps=0.3)"].correct
    assert figures["none"]["n"] == 10
    assert figures["pgd"] is None
    low, high = stored["fgsm", "min-aux", "FGSM(eps=0.3)"].interval
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in run("models").out


def test_rows_of_other_weights_are_not_shown(run, own_zoo, tmp_path):
    rows = own_zoo / "mnist-fcn-dr.jsonl"
    measure(run, rows, "--attack", "none")
    tensors, metadata = tensor_files.load_tensors(own_zoo / "mnist-fcn-dr.safetensors")
    key = next(iter(tensors))
    tensor_files.save_tensors(own_zoo / "mnist-fcn-dr.safetensors", {**tensors, key: tensors[key] * 2}, metadata)
    card = run("models", "mnist-fcn-dr", "--json")
    assert card.json["rows"] == []
    assert "2 rows" in card.err
    assert "other weights" in card.err


def test_the_card_has_recipe_and_checksums_for_any_path(run, own_zoo, tmp_path):
    path = tmp_path / "moved.safetensors"
    shutil.copy(own_zoo / "mnist-fcn-dr.safetensors", path)
    card = run("models", path, "--json").json
    assert card["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert card["weights_sha256"] == fingerprint(zoo.load("mnist-fcn-dr"))
    assert card["recipe"] == zoo.recipe(path).text
    shown = run("models", path).out
    assert card["file_sha256"] in shown
    assert "[training]\nepochs = 100" in shown  # brackets are text, not markup


def test_damaged_results_are_an_error_that_names_the_line(run, own_zoo):
    (own_zoo / "mnist-fcn-dr.jsonl").write_text(json.dumps({"schema": 1}) + "\n")
    done = run("models")
    assert done.code == 1
    assert "mnist-fcn-dr.jsonl, line 1" in done.err


@pytest.mark.parametrize("name", ["cifar10-resnet18-lc", "cifar10-resnet18-no-def", "mnist-cnn-dr"])
def test_a_card_has_one_row_for_each_setting(name):
    card = read_model_card(name)
    shown = [(row.data, attack_text(row.attack), eps_text(row.defence) + gradient_text(row.defence))
             for row in card.distinct_rows()]  # fmt: skip
    assert len({*shown}) == len(shown) < len(card.rows)
    assert all(one.n == max(row.n for row in card.rows if (row.attack, row.defence) == (one.attack, one.defence))
               for one in card.distinct_rows())  # fmt: skip
    assert not [words for *_, words in shown if words.startswith("0.0")]
    assert {words for *_, words in shown} >= {"none"}
