"""A network of the user, from a file of `soap.fit`: Python, every command, and the application of the service."""

import sys

import numpy as np
import pytest
import torch
from command_line import run
from PIL import Image
from torch import nn

import soap
from soap._runtime.isolation import preserved_random_state
from soap.data.dataset import make_dataset
from soap.recipes.trained_model import open_model

NETS = """
import soap
from torch import nn

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))

def joint():
    return soap.wrap(network(), "reconstruction", shape=(1, 8, 8))

def fails():
    raise OSError("no disk")

nothing = 3
"""
__all__ = ["run"]

CLASSES = ("cat", "dog", "eel")
WEIGHTS = "runs/last.safetensors"
MODULE = ("--module", "nets:network")


def network() -> nn.Module:
    with preserved_random_state():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))


def pets(n: int = 60) -> soap.data.Dataset:
    """One bright row of pixels, whose place is the class."""
    y = np.arange(n) % 3
    x = np.random.default_rng(0).integers(0, 60, (n, 1, 8, 8), np.uint8)
    x[np.arange(n), 0, 2 * y + 1] = 250
    return make_dataset("pets", "train", x, y, CLASSES)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with weights, the user's nets.py, and a folder of images."""
    folder, data = tmp_path_factory.mktemp("own"), pets()
    model = soap.wrap(network(), "reconstruction", shape=(1, 8, 8), name="mine")
    soap.fit(model, data, out=folder / "runs", epochs=4, lr=0.1, batch_size=10)
    (folder / "nets.py").write_text(NETS)
    for number, (x, y) in enumerate(zip(data.x[:12], data.y[:12].tolist(), strict=True)):
        file = folder / "pets" / CLASSES[y] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((x[0] * 255).byte().numpy()).save(file)
    return folder, model.eval()


@pytest.fixture
def here(fitted, run, monkeypatch):
    """Work in that folder; what the commands import is forgotten afterwards, as is a nets.py of an earlier test."""
    monkeypatch.chdir(fitted[0])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    yield fitted
    sys.modules.pop("nets", None)


def test_load_takes_a_class_a_function_or_a_name(here):
    _, model = here
    x = pets(6).x
    joint = lambda: soap.wrap(network(), "reconstruction", shape=(1, 8, 8))  # noqa: E731
    for module in (network, joint, "nets:network", "nets:joint"):
        loaded = soap.load(WEIGHTS, module=module)
        assert torch.equal(loaded(x), model(x))
        assert (loaded.class_names, loaded.name, loaded.purification) == (CLASSES, "mine", model.purification)
        assert not loaded.training
    assert open_model(model).classes == CLASSES


@pytest.mark.parametrize(
    ("name", "module", "words"),
    [
        (WEIGHTS, None, "--module nets:Classifier"),
        (WEIGHTS, "nets", "expected PACKAGE:FUNCTION"),
        (WEIGHTS, "no_such_file:make", "ModuleNotFoundError: No module named 'no_such_file'"),
        (WEIGHTS, "nets:missing", "no attribute 'missing'"),
        (WEIGHTS, "nets:nothing", "which is a int"),
        (WEIGHTS, "nets:fails", "raises OSError: no disk"),
        (WEIGHTS, dict, "returns a dict, expected a torch.nn.Module"),
        ("mnist-fcn-dr", "nets:network", "needs no module"),
    ],
)
def test_wrong_module_is_named(here, name, module, words):
    with pytest.raises(soap.InputError, match=words):
        soap.load(name, module=module)


@pytest.fixture
def run_json(run):
    """`run`, which must succeed; the printed JSON."""

    def call(*words):
        done = run(*words, "--json")
        assert done.code == 0, done.err
        return done.json

    return call


def test_commands_take_the_file(here, run_json):
    """The commands of docs/your_own_model.md are run by tests/test_tutorials.py."""
    card = run_json("models", WEIGHTS, *MODULE)
    assert (card["task"], card["architecture"], card["classes"]) == ("reconstruction", "nets:network", [*CLASSES])
    pictures = run_json("predict", WEIGHTS, "pets/dog", *MODULE)["images"]
    assert {one["name"] for one in pictures} == {"dog"}
    rows = run_json("evaluate", WEIGHTS, *MODULE, "--data", "pets", "--attack", "none")["rows"]
    assert rows[0]["accuracy"] == 1.0


def test_a_run_never_names_code_to_import(here, run, run_json):
    """Otherwise a run folder of somebody else could import a module when it is verified."""
    suite = ("--suite", "noise", "--eps", "0.1", "--limit", "4", "--out", "runs/noise")
    assert run_json("evaluate", WEIGHTS, *MODULE, "--data", "pets", *suite)["finished"]
    done = run("verify", "runs/noise")
    assert done.code == 2
    assert "--module" in done.err
    assert run_json("verify", "runs/noise", *MODULE)["holds"]


def test_data_must_be_named(here, run):
    done = run("evaluate", WEIGHTS, *MODULE, "--attack", "none")
    assert done.code == 2
    assert "give --data" in done.err


def test_service_takes_a_file_with_its_module_or_a_joint_model(here):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    from fastapi.testclient import TestClient

    from soap.serve import create_app

    picture = next((here[0] / "pets" / "eel").iterdir()).read_bytes()
    for models, module in (([WEIGHTS], network), ([WEIGHTS, "mnist-fcn-no-def"], "nets:network"), ([here[1]], None)):
        with TestClient(create_app(models, module=module), base_url="http://127.0.0.1") as client:
            found = client.post("/v1/purify", content=picture, headers={"Content-Type": "image/png"}).json()
            listed = client.get("/v1/models").json()["models"][0]
        assert (found["before"]["name"], found["model"]) == ("eel", "mine")
        assert (listed["classes"], listed["data"], listed["task"]) == ([*CLASSES], None, "reconstruction")


RECIPE = """
name = "pets"
data = "mnist"
[model]
architecture = "fcn"
inputs = [1, 8, 8]
dropout = 0.0
[training]
epochs = 4
lr = 0.1
batch_size = 4
"""


def test_train_takes_count_and_names_of_the_classes_from_the_data(here, tmp_path, run_json):
    (tmp_path / "pets.toml").write_text(RECIPE)
    run_json("train", tmp_path / "pets.toml", "--data", "pets", "--out", tmp_path / "run")
    weights = tmp_path / "run" / "last.safetensors"
    assert soap.load(weights).classes == 3
    assert run_json("predict", weights, "pets/eel")["images"][0]["name"] in CLASSES
    assert run_json("models", weights)["classes"] == [*CLASSES]


def test_training_on_labels_that_count_from_one_is_refused(tmp_path, run):
    (tmp_path / "pets.toml").write_text(RECIPE)
    data = pets(12)
    np.savez(tmp_path / "pets.npz", x=data.x.numpy(), y=data.y.numpy() + 1)
    done = run("train", tmp_path / "pets.toml", "--data", tmp_path / "pets.npz", "--out", tmp_path / "run")
    assert done.code == 2
    assert "Do your labels count from 1? Subtract 1." in done.err
