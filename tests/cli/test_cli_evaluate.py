"""`soap evaluate`: accuracy against a plain count, stored rows, and rows for different settings."""

import json
import signal
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import soap
from soap import recipes
from soap._files import tensor_files
from soap.attacks import FGSM, PGD
from soap.evaluation import PAPER
from soap.report import UPPER_BOUND
from soap.report.row_text import eps_text
from soap.results import Store, wilson
from soap.specs import attack_spec

MODEL = "mnist-fcn-dr"
QUICK = ("evaluate", MODEL, "--data", "mnist-mini", "--limit", "12")


def plain_counts(attack, data):
    """The number of correctly classified images, bare and purified, one image at a time."""
    model = soap.load(MODEL)
    purify = soap.SOAP(model)
    bare = purified = 0
    for x, y in zip(data.x.split(1), data.y.split(1), strict=True):
        x_adv = attack(model, x, y)
        bare += int(model(x_adv).argmax(1) == y)
        purified += int(model(purify(x_adv).x).argmax(1) == y)
    return bare, purified


def test_the_table_and_the_rows_are_a_plain_count(run, some, tmp_path):
    done = run(*QUICK, "--attack", "fgsm", "--attack", "none")
    assert done.code == 0
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.split()}
    rows = {(row.attack.name, eps_text(row.defence)): row for row in Store(tmp_path / "runs" / "results.jsonl").read()}
    assert len(rows) == 4
    for name in ("none", "fgsm"):
        counts = plain_counts(PAPER["mnist-mini"][name], some)
        assert (rows[name, "none"].correct, rows[name, "min-aux"].correct) == counts
        for count in counts:
            low, high = wilson(count, 12)
            assert f"{count / 12:.1%} [{low:.1%}, {high:.1%}]".replace("%", "") in lines[name]
    assert UPPER_BOUND in done.out
    assert "runs/results.jsonl" in done.err


def test_json_has_the_rows_and_the_warning(run):
    done = run(*QUICK, "--attack", "none", "--eps-pfy", "0.1", "--eps-pfy", "1/5", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.json["schema"] == "soap/1"
    assert done.json["finished"] is True
    assert done.json["note"] == UPPER_BOUND
    assert [row["defence"]["eps"] for row in done.json["rows"]] == [None, 0.1, 0.2]
    assert all(row["provenance"]["images"] == "0..11 of test" for row in done.json["rows"])


def test_a_second_call_measures_nothing(run, monkeypatch):
    first = run(*QUICK, "--attack", "fgsm", "--results", "r.jsonl", "--json")

    def forbidden(*_):
        raise AssertionError("the attack ran again")

    monkeypatch.setattr(FGSM, "perturb", forbidden)
    assert run(*QUICK, "--attack", "fgsm", "--results", "r.jsonl", "--json").json["rows"] == first.json["rows"]


def as_json(spec):
    return json.loads(json.dumps(asdict(spec)))


def test_given_settings_replace_the_papers(run):
    done = run(*QUICK, "--attack", "pgd", "--attack", "fgsm", "--eps", "8/255", "--step-size", "0.01", "--steps", "2",
               "--seed", "3", "--json")  # fmt: skip
    assert [row["attack"] for row in done.json["rows"][::2]] == [
        as_json(attack_spec("pgd", PGD(eps=8 / 255, step_size=0.01, steps=2, seed=3))),
        as_json(attack_spec("fgsm", FGSM(eps=8 / 255))),
    ]  # fmt: skip


def test_adversarial_images_are_saved(run, some, tmp_path):
    assert run(*QUICK, "--attack", "fgsm", "--save-adversarial", "adv").code == 0
    kept = np.load(tmp_path / "adv" / f"{MODEL}-fgsm.npz")
    expected = FGSM(eps=0.3)(soap.load(MODEL), some.x, some.y)
    assert np.array_equal(kept["y"], some.y.numpy())
    assert np.allclose(kept["x"], expected.numpy(), atol=1e-6)


def test_ctrl_c_keeps_finished_rows_and_the_next_call_resumes(run, monkeypatch, tmp_path):
    perturb = FGSM.perturb

    def interrupted(self, model, x, y):
        signal.raise_signal(signal.SIGINT)
        return perturb(self, model, x, y)

    monkeypatch.setattr(FGSM, "perturb", interrupted)
    stopped = run(*QUICK, "--attack", "none", "--attack", "fgsm", "--attack", "pgd", "--batch-size", "5")
    assert stopped.code == 130
    assert "run the same command again" in stopped.err
    store = Store(tmp_path / "runs" / "results.jsonl")
    assert [row.attack.name for row in store.read()] == ["none", "none"]
    assert "none" in stopped.out

    monkeypatch.setattr(FGSM, "perturb", perturb)
    assert run(*QUICK, "--attack", "none", "--attack", "fgsm", "--batch-size", "5").code == 0
    assert [row.attack.name for row in store.read()] == ["none", "none", "fgsm", "fgsm"]


def test_l2_attacks_show_how_often_they_succeeded(run):
    done = run(*QUICK[:-1], "4", "--attack", "df", "--attack", "none")
    assert done.code == 0
    assert "found in radius" in done.out
    rate = run(*QUICK[:-1], "4", "--attack", "df", "--json").json["rows"][0]["measures"]["success"]
    assert f"{100 * rate:.1f} %" in done.out


def save(path, recipe):
    tensor_files.save_tensors(path, recipes.build(recipe).state_dict(), {"recipe": recipe.text})


def test_a_model_without_a_task_is_evaluated_bare(run, tmp_path):
    save(tmp_path / "bare.safetensors", recipes.read("mnist-fcn-no-def"))
    arguments = ("evaluate", "bare.safetensors", "--data", "mnist-mini", "--limit", "4", "--attack", "none")
    done = run(*arguments, "--json")
    assert done.code == 0
    assert [row["defence"]["name"] for row in done.json["rows"]] == ["none"]
    assert "only the bare classifier is evaluated" in done.err
    assert UPPER_BOUND not in run(*arguments).out
    asked = run(*arguments, "--eps-pfy", "min-aux")
    assert asked.code == 2
    assert "without an auxiliary task" in asked.err


def test_gradients_of_label_consistency_give_other_rows(run, tmp_path):
    recipe = recipes.read("cifar10-resnet18-lc")
    save(tmp_path / "lc.safetensors", recipe)
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), np.uint8)
    np.savez(tmp_path / "two.npz", x=x, y=np.array([0, 9]))
    arguments = ("evaluate", "lc.safetensors", "--data", "two.npz", "--attack", "none", "--eps-pfy", "8/255")
    rows = {}
    for gradient in ("paper", "stop"):
        done = run(*arguments, "--gradient", gradient, "--json", "-v")
        assert "the paper's settings for cifar10" in done.err  # the user's own images: as on the recipe's data set
        rows[gradient] = done.json["rows"]
    assert rows["paper"][0]["key"] == rows["stop"][0]["key"]  # the bare classifier has no such gradient
    assert rows["paper"][1]["key"] != rows["stop"][1]["key"]
    assert rows["stop"][1]["defence"]["settings"]["task"] == {"gradient": "stop"}
    default = run(*arguments, "--json").json["rows"]
    assert [row["key"] for row in default] == [row["key"] for row in rows["paper"]]
    assert run(*arguments, "--gradient", "soft").code == 2
    other = run(*QUICK, "--gradient", "stop")
    assert other.code == 2
    assert "only the task 'consistency'" in other.err


def test_the_given_gradient_of_label_consistency_is_used(tmp_path):
    recipe = recipes.read("cifar10-resnet18-lc")
    save(tmp_path / "lc.safetensors", recipe)
    chosen = soap.load(tmp_path / "lc.safetensors", gradient="exact")
    assert chosen.auxiliary.gradient == "exact"
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    exact = soap.SOAP(chosen, 8 / 255)(x).x
    own = soap.recipes.build(replace(recipe, auxiliary={**recipe.auxiliary, "gradient": "exact"})).eval()
    assert torch.equal(exact, soap.SOAP(own, 8 / 255)(x).x)
    assert not torch.equal(exact, soap.SOAP(soap.load(tmp_path / "lc.safetensors"), 8 / 255)(x).x)


@pytest.mark.parametrize("names", [("cw",), ("none", "fgsm")])
def test_a_setting_that_no_attack_uses_is_refused(run, names):
    chosen = [part for name in names for part in ("--attack", name)]
    done = run(*QUICK, *chosen, "--step-size", "0.1")
    assert done.code == 2
    assert "step_size is a setting of pgd only" in done.err


def test_dark_digits_on_white_are_inverted(run, some, tmp_path):
    np.savez(tmp_path / "dark.npz", x=1 - some.x.numpy(), y=some.y.numpy())
    quick = ("--attack", "none", "--attack", "fgsm", "--limit", "12", "--json")
    wanted = run("evaluate", MODEL, "--data", "mnist-mini", *quick).json["rows"]
    dark = run("evaluate", MODEL, "--data", "dark.npz", *quick).json["rows"]
    light = run("evaluate", MODEL, "--data", "dark.npz", *quick, "--invert").json["rows"]
    assert [row["correct"] for row in light] == [row["correct"] for row in wanted] != [row["correct"] for row in dark]
