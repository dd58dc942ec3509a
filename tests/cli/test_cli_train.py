"""`soap train`: settings stored in the weights, and runs that are stopped and resumed."""

import json
import signal
import tomllib

import pytest
import torch

import soap
from soap import recipes, zoo
from soap._files import tensor_files
from soap.auxiliary import Reconstruction
from soap.report.row_text import training_text

TRIAL = ("train", "mnist-fcn-dr", "--data", "mnist-mini", "--limit", "256", "--epochs", "2")


def weights(path):
    return tensor_files.load_tensors(path)[0]


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_a_trial_run_stores_its_settings_in_the_weights(run, tmp_path):
    done = run(*TRIAL, "--seed", "5", "-v")
    folder = tmp_path / "runs" / "mnist-fcn-dr"
    assert done.code == 0
    assert done.out.splitlines() == [
        "best weights: runs/mnist-fcn-dr/best.safetensors",
        "last weights: runs/mnist-fcn-dr/last.safetensors",
    ]
    assert "soap evaluate runs/mnist-fcn-dr/last.safetensors --attack pgd" in done.err
    assert [line.split(",")[0] for line in done.err.splitlines()[:2]] == ["epoch 1/2", "epoch 2/2"]
    text = (folder / "recipe.toml").read_text()
    assert tomllib.loads(text)["changed"] == {"data": "mnist-mini", "epochs": 2, "seed": 5}
    assert "first 256 images" in text
    assert zoo.recipe(folder / "last.safetensors").text == text
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert same(weights(folder / "last.safetensors"), soap.load(folder / "last.safetensors").state_dict())
    # Its own recipe makes it again.
    again = run("train", folder / "recipe.toml", "--limit", "256", "--out", "again")
    assert again.code == 0
    assert same(weights(folder / "last.safetensors"), weights(tmp_path / "again" / "last.safetensors"))


def test_changed_settings_are_stored_in_the_weights(run):
    short = ("--limit", "256", "--epochs", "1", "--decay", "cosine", "--dropout", "0")
    assert run("train", "mnist-fcn-no-def", "--data", "mnist-mini", *short).code == 0
    model = soap.load("runs/mnist-fcn-no-def/last.safetensors")
    assert not [layer for layer in model.modules() if isinstance(layer, torch.nn.Dropout) and layer.p > 0]
    assert training_text(model.training_spec) == "1 epochs by cosine, dropout 0.0, seed 0, fp32"


@pytest.mark.parametrize("option", [("--decay", "cosine"), ("--dropout", "0")])
def test_a_generative_model_has_no_decay_and_no_dropout(run, option):
    done = run("train", "defense-gan-mnist", *option)
    assert (done.code, "are for classifiers; defense-gan-mnist is a generative model" in done.err) == (2, True)


def test_dropout_of_a_network_without_any_is_refused(run):
    done = run("train", "mnist-cnn-no-def", "--data", "mnist-mini", "--dropout", "0.5")
    assert done.code == 2
    assert "dropout" in done.err


def test_json_has_the_history(run):
    done = run(*TRIAL, "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.json["finished"] is True
    assert [row["epoch"] for row in done.json["history"]] == [1, 2]
    assert done.json["weights"]["last"] == "runs/mnist-fcn-dr/last.safetensors"


def test_a_resumed_run_equals_an_uninterrupted_run(run, monkeypatch, tmp_path):
    assert run(*TRIAL, "--out", "straight").code == 0
    losses, calls = Reconstruction.losses, []

    def interrupted(self, *arguments):
        calls.append(None)
        if len(calls) == 3:  # two steps an epoch: in the middle of the second
            signal.raise_signal(signal.SIGINT)
        return losses(self, *arguments)

    monkeypatch.setattr(Reconstruction, "losses", interrupted)
    stopped = run(*TRIAL, "--out", "cut")
    assert stopped.code == 130
    assert "--resume" in stopped.err
    assert not (tmp_path / "cut" / "last.safetensors").exists()
    assert run(*TRIAL, "--out", "cut", "--resume").code == 0
    assert same(weights(tmp_path / "straight" / "last.safetensors"), weights(tmp_path / "cut" / "last.safetensors"))


def test_an_earlier_run_is_not_overwritten(run, tmp_path):
    assert run(*TRIAL, "--out", "one").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    refused = run(*TRIAL, "--out", "one")
    assert refused.code == 2
    assert "one contains an earlier run" in refused.err
    other = run(*TRIAL[:-1], "3", "--out", "one", "--resume")
    assert other.code == 2
    assert "belongs to another run" in other.err
    assert {path: path.read_bytes() for path in (tmp_path / "one").iterdir()} == before
    none = run(*TRIAL, "--out", "two", "--resume")
    assert none.code == 2
    assert "no checkpoint" in none.err
    assert not (tmp_path / "two").exists()


def test_an_attack_of_the_recipe_is_trained_with(run, tmp_path):
    text = recipes.read("mnist-fcn-fgsm-at").text
    (tmp_path / "own.toml").write_text(text.replace('name = "mnist-fcn-fgsm-at"', 'name = "own"'))
    done = run("train", "own.toml", "--data", "mnist-mini", "--limit", "128", "--epochs", "1", "--json", "-q")
    assert done.code == 0
    assert done.json["recipe"] == "own"
    checkpoint = tensor_files.load_tensors(tmp_path / "runs" / "own" / "checkpoint.safetensors")[1]
    assert json.loads(checkpoint["state"])["identity"]["attack"] == "FGSM(eps=0.3)"


def test_a_missing_compiler_is_an_input_error(run, monkeypatch):
    failure = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})

    def broken(*_, **__):
        raise failure("No working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", lambda function: broken)
    done = run(*TRIAL, "--compile")
    assert done.code == 2
    assert done.err == (
        "error: torch.compile does not work here (No working C++ compiler found); train without --compile.\n"
    )


@pytest.mark.gpu
def test_precision_is_kept_with_the_weights(run, tmp_path):
    assert run(*TRIAL, "--precision", "bf16", "--device", "cuda", "--out", "low").code == 0
    assert tensor_files.load_tensors(tmp_path / "low" / "last.safetensors")[1]["precision"] == "bf16"
