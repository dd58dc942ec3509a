"""Wrapped models: saved and restored; untrusted files are limited."""

import copy
import json

import pytest
import torch
from own_networks import OwnNetwork, images, own_network
from tiny import state_of
from torch import nn
from torch.nn import functional as F

import soap
from soap import FileError, InputError
from soap.auxiliary import AuxiliaryTask, Consistency, JointLosses, Purification, accuracy, restore, save, wrap

SETTINGS = Purification(step_size=0.1, steps=3, grid=(0.0, 0.1, 0.2))


class Brightness(AuxiliaryTask):
    """A user's own task."""

    alpha = 1.0

    def losses(self, model, x, y, generator):
        logits = model(x)
        return JointLosses(F.cross_entropy(logits, y), self.loss(model, x).mean(), accuracy(logits, y))

    def loss(self, model, x):
        return x.flatten(1).mean(1)


@pytest.mark.parametrize("task", ["consistency", "rotation", "reconstruction"])
def test_saved_model_is_restored(tmp_path, task):
    model = wrap(own_network(), task, shape=(1, 8, 8), noise=0.3, purification=SETTINGS, name="mine").eval()
    path = tmp_path / "model.safetensors"
    save(path, model)
    with soap._runtime.isolation.preserved_random_state():
        torch.manual_seed(9)
        fresh = OwnNetwork()
    again = restore(path, fresh)
    x = images(4, 1, 8, 8)
    assert torch.equal(again(x), model(x))
    assert torch.equal(again.auxiliary.loss(again, x), model.auxiliary.loss(model, x))
    assert torch.equal(fresh.eval()(x), model(x))
    assert (again.purification, again.name, again.auxiliary.noise) == (SETTINGS, "mine", 0.3)
    assert not again.training


def test_gradient_is_restored_and_own_task_must_be_passed(tmp_path):
    path = tmp_path / "model.safetensors"
    save(path, wrap(own_network(), Consistency(gradient="stop"), shape=(1, 8, 8)))
    assert restore(path, own_network()).auxiliary.gradient == "stop"
    save(path, wrap(own_network(), Brightness(), shape=(1, 8, 8)))
    with pytest.raises(InputError, match="its own task"):
        restore(path, own_network())
    assert isinstance(restore(path, own_network(), Brightness()).auxiliary, Brightness)


class Tied(nn.Module):
    """Two layers that share a weight, and a module registered twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.two.weight = self.one.weight
        self.parts = nn.ModuleList([self.one, self.last])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.two(F.relu(self.one(x))))


def test_shared_weights_stay_shared(tmp_path):
    model, path, x = wrap(Tied(), "reconstruction", shape=(8,)), tmp_path / "model.safetensors", images(4, 8)
    save(path, copy.deepcopy(model))
    other = Tied()
    assert torch.equal(restore(path, other)(x), model(x))
    assert other.two.weight is other.one.weight


def test_wrong_module_or_file_raises_and_changes_nothing(tmp_path):
    path = tmp_path / "model.safetensors"
    save(path, wrap(own_network(), "rotation", shape=(1, 8, 8)))
    other = own_network(classes=5)
    before = state_of(other)
    with pytest.raises(FileError, match=r"network\.last\.bias' is \[4\], expected \[5\]"):
        restore(path, other)
    assert state_of(other) == before
    with pytest.raises(FileError, match="not a wrapped model"):
        restore(soap.zoo.weights_path("mnist-fcn-dr"), own_network())
    with pytest.raises(FileError, match="no such file"):
        restore(tmp_path / "none.safetensors", own_network())


def test_file_with_a_huge_input_shape_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save(path, wrap(own_network(), "rotation", shape=(1, 8, 8)))
    tensors, facts = soap._files.tensor_files.load_tensors(path)
    about = {**json.loads(facts["adopted"]), "shape": [1, 2048, 2048]}
    soap._files.tensor_files.save_tensors(path, tensors, {**facts, "adopted": json.dumps(about)})
    with pytest.raises(FileError, match=r"more than 3,145,728 values.*if you trust the file"):
        restore(path, own_network())
