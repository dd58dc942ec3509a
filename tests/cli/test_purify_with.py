"""`soap train` of a generative model, `soap purify --with` it, and its card in `soap models`."""

import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from soap import zoo
from soap._files import tensor_files
from soap.cli import main
from soap.data.picture_files import COMPARISON_NAME
from soap.purifiers import DefenseGAN
from soap.recipes import generative
from soap.training import WganGp

TEXT = """name = "own"
data = "mnist-mini"
[model]
kind = "wgan"
latent = 4
width = 2
[training]
epochs = 2
lr = 1e-3
batch = 40
[purifier]
steps = 4
starts = 3
"""
TRAIN = ("train", "own.toml", "--limit", "80")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The weights of a generator that the command trained for a few steps."""
    folder = tmp_path_factory.mktemp("prior")
    (folder / "own.toml").write_text(TEXT)
    out = folder / "run"
    assert main(["train", str(folder / "own.toml"), "--limit", "80", "--out", str(out), "-q"]) == 0
    return out / "last.safetensors"


@pytest.fixture
def prior(trained, tmp_path):
    """The same weights in the folder where the command runs."""
    return shutil.copy(trained, tmp_path / "prior.safetensors")


def levels(path):
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def test_a_generative_model_is_trained_and_resumed(run, trained, tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text(TEXT)
    done = run(*TRAIN, "--out", "straight", "-v")
    assert done.code == 0
    assert done.out == "last weights: straight/last.safetensors\n"
    assert "soap purify --with defense-gan --prior straight/last.safetensors" in done.err
    assert [line.split(",")[0] for line in done.err.splitlines()[:2]] == ["epoch 1/2", "epoch 2/2"]
    assert "distance" in done.err
    text = (tmp_path / "straight" / "recipe.toml").read_text()
    assert "first 80 images" in text
    assert zoo.prior_recipe(tmp_path / "straight" / "last.safetensors").text == text
    step, calls = WganGp.step, []

    def interrupted(self, *arguments):
        calls.append(None)
        if len(calls) == 3:  # two steps an epoch: in the middle of the second
            signal.raise_signal(signal.SIGINT)
        return step(self, *arguments)

    monkeypatch.setattr(WganGp, "step", interrupted)
    stopped = run(*TRAIN, "--out", "cut")
    assert stopped.code == 130
    assert run(*TRAIN, "--out", "cut", "--resume", "--json").json["weights"] == {"last": "cut/last.safetensors"}
    one, two = (tensor_files.load_tensors(tmp_path / name / "last.safetensors")[0] for name in ("straight", "cut"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_all_arguments_are_pictures_and_the_purified_images_are_written(run, prior, digits, some, tmp_path):
    one, two = digits / "0" / "digit.png", digits / "1" / "digit.png"
    (tmp_path / "second.png").write_bytes(two.read_bytes())
    done = run("purify", "--with", "defense-gan", one, "second.png", "--prior", prior, "--out", "pure", "--json")
    assert done.code == 0
    purify = DefenseGAN(zoo.load_prior(prior), steps=4, starts=3)
    assert done.json["purifier"] == repr(purify)
    assert done.json["prior"] == "own"
    expected = purify(some.x[:2])
    assert [image["output"] for image in done.json["images"]] == ["pure/digit.png", "pure/second.png"]
    for k, image in enumerate(done.json["images"]):
        assert np.abs(levels(tmp_path / image["output"]) - expected.x[k, 0].numpy() * 255).max() <= 1.01
        assert image["eps"] == pytest.approx(expected.eps[k].item(), abs=1e-5)
        assert image["loss_after"] == pytest.approx(expected.loss_after[k].item(), rel=1e-3)
        assert image["loss_after"] < image["loss_before"]
    assert levels(tmp_path / "pure" / COMPARISON_NAME).shape[1] > 3 * 28
    # A single picture, a folder, and the settings of the command in place of the prior's.
    alone = run("purify", one, "--with", "defense-gan", "--prior", prior, "--out", "alone", "--steps", "2")
    assert alone.code == 0
    assert "digit.png" in alone.out
    folder = run(
        "purify", digits, "--with", "defense-gan", "--prior", prior, "--out", "all", "--batch-size", "2", "--json"
    )
    assert len(folder.json["images"]) == 3
    assert folder.json["images"][1]["loss_after"] == pytest.approx(done.json["images"][1]["loss_after"], rel=1e-3)


def test_an_npz_keeps_its_floats_and_labels(run, prior, archive, some, tmp_path):
    done = run("purify", archive, "--with", "defense-gan", "--prior", prior, "--out", "pure", "--seed", "5")
    assert done.code == 0
    made = np.load(tmp_path / "pure" / "four.npz")
    expected = DefenseGAN(zoo.load_prior(prior), steps=4, starts=3, seed=5)(some.x[:4]).x
    assert np.allclose(made["x"], expected.numpy(), atol=1e-5)
    assert np.array_equal(made["y"], some.y[:4].numpy())


@pytest.fixture
def mess(prior, digits, tmp_path):
    (tmp_path / "good.png").write_bytes((digits / "0" / "digit.png").read_bytes())
    Image.new("RGB", (32, 32)).save(tmp_path / "large.png")
    np.savez(tmp_path / "colour.npz", x=np.zeros((2, 3, 32, 32), np.float32))
    shutil.copy(zoo.weights_path("mnist-fcn-dr"), tmp_path / "classifier.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(prior.read_bytes()[:500])
    (tmp_path / "broken.toml").write_text(TEXT.replace("starts = 3", "strats = 3"))
    (tmp_path / "own.toml").write_text(TEXT)


WITH = "purify good.png --with defense-gan --prior prior.safetensors --out out"
CASES = [
    (WITH.replace("defense-gan", "defence-gan"), 2, "generative model 'defence-gan'; did you mean defense-gan"),
    (WITH.replace("defense-gan", "pixeldefend"), 2, "a wgan, but pixeldefend uses a pixelcnn; try defense-gan"),
    (WITH.replace("prior.", "classifier."), 2, "holds a classifier, expected a generative model"),
    (WITH.replace("prior.", "cut."), 1, "cut.safetensors: not a complete safetensors file"),
    (WITH.replace("prior.", "gone."), 1, "gone.safetensors: no such file"),
    (WITH.replace("good.png", "gone.png"), 1, "gone.png: no such file"),
    (WITH.replace("good.png", "large.png"), 2, "large.png is 32 x 32 pixels, expected 28 x 28"),
    (WITH.replace("good.png", "colour.npz"), 2, "this model takes [batch, 1, 28, 28]"),
    (WITH.replace("defense-gan", "hedge"), 2, "needs a classifier; try `soap evaluate MODEL --purifier hedge`"),
    (WITH.replace("defense-gan", "soap"), 2, "needs a classifier; omit --with and name a model"),
    (WITH.replace("purify", "purify mnist-fcn-dr"), 2, "mnist-fcn-dr is read as a file; remove it"),
    (WITH + " --steps 0", 2, "steps (L) is 0"),
    (WITH + " --step-size 0", 2, "step_size is 0.0"),
    (WITH + " --eps-pfy 0.1", 2, "unknown purifier setting 'eps'; did you mean s"),
    (WITH + " --eps-pfy min-aux", 2, "eps='min-aux' is an option of SOAP only; defense-gan takes"),
    (WITH.replace("--with defense-gan", ""), 2, "--prior is the generative model of --with"),
    ("purify mnist-fcn-dr --out out", 2, "no pictures; name FILES after the model mnist-fcn-dr"),
    ("predict prior.safetensors good.png", 2, "holds a generative model, expected a classifier"),
    ("train broken.toml --limit 80", 2, "unknown key in [purifier] 'strats'; did you mean starts"),
    ("train own.toml --limit 80 --compile", 2, "WganGp does not support torch.compile; train without --compile"),
    ("train own.toml --limit 80 --precision bf16 --device cpu", 2, "precision 'bf16' is for GPUs"),
    ("train defense-gan-mnits", 2, "did you mean defense-gan-mnist"),
]


@pytest.mark.usefixtures("mess")
@pytest.mark.parametrize(("line", "code", "said"), CASES, ids=[case[0] for case in CASES])
def test_bad_input_is_one_line_and_leaves_nothing(run, tmp_path, line, code, said):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = run(*line.split())
    assert said in done.err
    assert done.code == code
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_prior_that_is_not_bundled_names_its_training_command(run, digits, tmp_path, monkeypatch):
    (tmp_path / "zoo").mkdir()
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    done = run("purify", digits, "--with", "defense-gan", "--out", "out")
    assert done.code == 2
    assert "soap train defense-gan-mnist" in done.err


def test_models_lists_bundled_priors_and_shows_their_cards(run, trained, digits, tmp_path, monkeypatch):
    (tmp_path / "zoo").mkdir()
    shutil.copy(trained, tmp_path / "zoo" / "defense-gan-mnist.safetensors")
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    listed = run("models", "--json").json
    assert listed["models"] == []
    assert listed["prior_recipes"] == generative.names()
    (card,) = listed["priors"]
    count = sum(parameter.numel() for parameter in zoo.load_prior(trained).parameters())
    assert (card["name"], card["kind"], card["parameters"], card["purifier"]) == ("own", "wgan", count, "defense-gan")
    assert "--with defense-gan" in run("models").out
    shown = run("models", "defense-gan-mnist")
    assert card["file_sha256"] in shown.out
    assert '[model]\nkind = "wgan"' in shown.out
    assert run("models", "defense-gan-mnist", "--json").json["recipe"] == card["recipe"]
    # Bundled, it needs no --prior.
    assert run("purify", digits, "--with", "defense-gan", "--out", "out").code == 0
