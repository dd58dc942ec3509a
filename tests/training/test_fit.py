"""`fit`: equal to `train`, from arrays or a data set, resumable, and readable by `restore`."""

import numpy as np
import pytest
import torch
from test_training import images, weights
from tiny import tiny_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import soap
from soap import InputError
from soap._runtime.isolation import preserved_random_state
from soap.auxiliary import restore, wrap
from soap.data.dataset import make_dataset
from soap.training import Schedule, as_dataset, fit, train

SHORT = {"epochs": 2, "lr": 0.05, "batch_size": 8}


def network() -> nn.Module:
    with preserved_random_state():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 4)
        )


def data(n: int = 34) -> tuple[torch.Tensor, torch.Tensor]:
    made = images(n)
    return made.x, made.y


def test_fit_equals_train_with_the_same_schedule(tmp_path):
    x, y = data()
    plain, front = tiny_model(), tiny_model()
    train(plain, as_dataset(x, y, classes=4), Schedule(**SHORT, seed=3), out=tmp_path / "plain")
    done = fit(front, x, y, out=tmp_path / "front", **SHORT, seed=3)
    assert done.finished
    assert weights(front) == weights(plain)


def test_bytes_floats_tensors_and_data_sets_give_the_same_weights(tmp_path):
    x, y = data()
    levels = (x * 255).round().byte()
    kinds = {
        "bytes": (levels.numpy(), y.numpy()),
        "tensors": (levels.float() / 255, y),
        "doubles": ((levels.float() / 255).double().numpy(), y.numpy().astype(np.int8)),
        "set": (make_dataset("mine", "train", levels.numpy(), y.numpy(), "abcd"), None),
    }
    found = {}
    for name, (inputs, labels) in kinds.items():
        model = wrap(network(), "reconstruction", shape=(1, 8, 8))
        fit(model, inputs, labels, out=tmp_path / name, **SHORT)
        found[name] = weights(model)
    assert all(one == found["bytes"] for one in found.values())


@pytest.mark.parametrize("task", ["consistency", "rotation", "reconstruction"])
def test_fit_trains_the_wrapped_module_and_restore_loads_it(tmp_path, task):
    x, y = data(200)
    mine = network()
    model = wrap(mine, task, shape=(1, 8, 8), alpha=1.0)
    done = fit(model, x, y, out=tmp_path, epochs=12, lr=0.05, batch_size=16)
    assert done.history[-1]["classification"] < done.history[0]["classification"]
    assert torch.equal(mine(x), model(x))  # the same module
    again = restore(tmp_path / "last.safetensors", network())
    assert weights(again) == weights(model)
    assert torch.equal(again.auxiliary.loss(again, x), model.auxiliary.loss(model, x))


def test_frozen_parameters_do_not_change(tmp_path):
    mine = network()
    mine[1].weight.requires_grad_(False)
    before = mine[1].weight.clone()
    fit(wrap(mine, "reconstruction", shape=(1, 8, 8)), *data(), out=tmp_path, **SHORT)
    assert torch.equal(mine[1].weight, before)


def test_stopped_run_resumes_to_the_same_weights(tmp_path):
    whole = wrap(network(), "reconstruction", shape=(1, 8, 8))
    fit(whole, *data(), out=tmp_path / "whole", **SHORT)
    calls: list[int] = []
    first = wrap(network(), "reconstruction", shape=(1, 8, 8))
    done = fit(first, *data(), out=tmp_path / "cut", **SHORT, stop=lambda: calls.append(1) or len(calls) >= 3)
    assert not done.finished
    with pytest.raises(InputError, match="contains an earlier run; continue it with resume=True"):
        fit(wrap(network(), "reconstruction", shape=(1, 8, 8)), *data(), out=tmp_path / "cut", **SHORT)
    resumed = wrap(network(), "reconstruction", shape=(1, 8, 8), seed=7)
    assert fit(resumed, *data(), out=tmp_path / "cut", **SHORT, resume=True).finished
    assert weights(resumed) == weights(whole)
    with pytest.raises(InputError, match="contains no checkpoint"):
        fit(resumed, *data(), out=tmp_path / "other", **SHORT, resume=True)


X, Y = data(6)
BAD = [
    ((X, None), {}, "pass y, or a Dataset"),
    ((as_dataset(X, Y, classes=4), Y), {}, "leave out y"),
    ((X * 255, Y), {}, "divide by 255"),
    ((X.long(), Y), {}, "expected bytes"),
    ((X, Y.float()), {}, "expected integers"),
    ((X, Y + 1), {}, "labels run from"),
    ((X[:3], Y), {}, "one label for each"),
    ((X.flatten(1), Y), {}, "this model takes"),
    ((torch.full_like(X, torch.nan), Y), {}, "NaN"),
    ((X, Y), {"epochs": 0}, "epochs is 0"),
    ((X, Y), {"lr": -1.0}, "lr is -1.0"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("given", "changes", "words"), BAD, ids=[words for *_, words in BAD])
def test_bad_input_raises_and_writes_nothing(tmp_path, given, changes, words):
    model = tiny_model()
    before = weights(model)
    with pytest.raises(InputError, match=words):
        fit(model, *given, out=tmp_path / "run", **{**SHORT, **changes})
    assert weights(model) == before
    assert not (tmp_path / "run").exists()


def test_model_without_a_task_is_refused(tmp_path):
    with pytest.raises(InputError, match="without an auxiliary task"):
        fit(soap.load("mnist-fcn-no-def"), soap.data.load("mnist-mini").take(10), out=tmp_path, epochs=1)


class Masked(nn.Module):
    """A network with a buffer of minus infinity, like an attention mask."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("mask", torch.full((2, 2), -torch.inf), persistent=persistent)

    def forward(self, x):
        return self.inner(x)


def test_model_that_cannot_be_saved_is_refused_before_training(tmp_path):
    """Such a training once finished, and its weights could not be read."""
    x, y = data()
    with pytest.raises(InputError, match=r"mask' of the model has NaN or infinite values.*persistent=False"):
        fit(wrap(Masked(True), "reconstruction", shape=(1, 8, 8)), x, y, out=tmp_path / "a", **SHORT)
    assert not (tmp_path / "a").exists()
    model = wrap(Masked(False), "reconstruction", shape=(1, 8, 8))
    fit(model, x, y, out=str(tmp_path / "b"), **SHORT)
    assert torch.equal(restore(str(tmp_path / "b" / "last.safetensors"), Masked(False))(x), model.eval()(x))


def test_second_training_in_the_same_folder_is_refused(tmp_path):
    """The second training once overwrote the weights of the first."""
    x, y = data()

    def second(progress):
        with pytest.raises(soap.FileError, match="another process uses this folder; wait until it ends, or choose"):
            train(tiny_model(), as_dataset(x, y, classes=4), Schedule(**SHORT, seed=1), out=tmp_path)

    done = train(tiny_model(), as_dataset(x, y, classes=4), Schedule(**SHORT), out=tmp_path, watch=second)
    assert done.finished


def adam(parameters):
    return torch.optim.Adam(parameters, 1e-2)


def test_data_of_torch_gives_the_same_weights_as_arrays(tmp_path):
    x, y = data()
    found = []
    for name, given in (("arrays", (x, y)), ("loader", (DataLoader(TensorDataset(x, y), batch_size=5),))):
        model = wrap(network(), "reconstruction", shape=(1, 8, 8))
        fit(model, *given, out=tmp_path / name, **SHORT)
        found.append(weights(model))
    assert found[0] == found[1]


def test_own_optimiser_is_scaled_by_the_schedule_and_resumed(tmp_path):
    x, y = data()
    made = []

    def make(parameters):
        made.append(adam(parameters))
        return made[-1]

    whole = wrap(network(), "reconstruction", shape=(1, 8, 8))
    fit(whole, x, y, out=tmp_path / "whole", **SHORT, optimiser=make)
    assert made[0].param_groups[0]["lr"] == pytest.approx(1e-3)  # the milestone divides it by 10
    cut = wrap(network(), "reconstruction", shape=(1, 8, 8))
    calls: list[int] = []
    fit(cut, x, y, out=tmp_path / "cut", **SHORT, optimiser=adam, stop=lambda: calls.append(1) or len(calls) >= 3)
    resumed = wrap(network(), "reconstruction", shape=(1, 8, 8))
    with pytest.raises(InputError, match="another run: optimiser differ"):
        fit(resumed, x, y, out=tmp_path / "cut", **SHORT, resume=True)
    fit(resumed, x, y, out=tmp_path / "cut", **SHORT, optimiser=adam, resume=True)
    assert weights(resumed) == weights(whole)


def test_optimiser_must_be_one(tmp_path):
    with pytest.raises(InputError, match="optimiser returned a list, expected an optimiser"):
        fit(tiny_model(), *data(), out=tmp_path, **SHORT, optimiser=list)


def test_warns_if_training_lowers_the_accuracy(tmp_path):
    x, y = data(200)
    model = wrap(network(), "reconstruction", shape=(1, 8, 8))
    fit(model, x, y, out=tmp_path / "good", epochs=12, lr=0.05, batch_size=16)
    ascent = {"batch_size": 16, "optimiser": lambda p: torch.optim.SGD(p, 0.1, maximize=True)}
    with pytest.warns(UserWarning, match=r"training lowered the accuracy on 200 training images from .*lower lr"):
        fit(model, x, y, out=tmp_path / "bad", epochs=3, **ascent)
