"""Checkpoints: the last two are kept, a damaged one is skipped with a warning, another run's is refused."""

import dataclasses
import json

import pytest
import torch
from test_training import SCHEDULE, StopAfter, images, weights
from tiny import tiny_model

import soap
from soap._files import tensor_files
from soap.training import checkpoint, train


def stopped(out, *steps):
    """Start a run and stop it after so many steps; resume and stop it again for each further count."""
    for number, count in enumerate(steps):
        train(tiny_model(), images(), SCHEDULE, out=out, resume=number > 0, stop=StopAfter(count))


def step_of(path):
    return json.loads(tensor_files.load_tensors(path)[1]["state"])["step"]


@pytest.fixture
def whole(tmp_path):
    model = tiny_model()
    train(model, images(), SCHEDULE, out=tmp_path / "whole")
    return weights(model)


def test_last_two_checkpoints_are_kept(tmp_path):
    stopped(tmp_path, 2, 3, 1)
    assert step_of(tmp_path / checkpoint.NAME) == 6
    assert step_of(tmp_path / checkpoint.PREVIOUS) == 5


@pytest.mark.parametrize("damage", [lambda c: c[:-7], lambda c: c[:-50] + bytes([c[-50] ^ 1]) + c[-49:], lambda c: b""])
def test_damaged_checkpoint_is_skipped_and_the_run_ends_with_the_same_weights(tmp_path, caplog, whole, damage):
    out = tmp_path / "run"
    stopped(out, 5, 3)
    path = out / checkpoint.NAME
    path.write_bytes(damage(path.read_bytes()))
    model = tiny_model(seed=9)
    # A crash before the next save must not leave only the damaged checkpoint.
    assert train(model, images(), SCHEDULE, out=out, resume=True, stop=StopAfter(1)).step == 6
    assert "checkpoint.safetensors: not a complete safetensors file" in caplog.messages[0]
    assert "previous checkpoint, of step 5" in caplog.messages[0]
    assert (step_of(path), step_of(out / checkpoint.PREVIOUS)) == (6, 5)
    caplog.clear()
    assert train(model, images(), SCHEDULE, out=out, resume=True).finished
    assert not caplog.messages
    assert weights(model) == whole


def test_error_names_both_damaged_checkpoints(tmp_path):
    stopped(tmp_path, 2, 3)
    for name in (checkpoint.NAME, checkpoint.PREVIOUS):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    with pytest.raises(soap.FileError, match=r"checkpoint\.safetensors: .*checkpoint\.previous\.safetensors: "):
        train(tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True)


def test_checkpoint_of_another_version_data_or_architecture_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path, 2)
    go = {"data": images(), "schedule": SCHEDULE, "out": tmp_path, "resume": True}
    before = (tmp_path / checkpoint.NAME).read_bytes()
    with pytest.raises(soap.InputError, match=r"another run: architecture differ"):
        train(tiny_model("rotation"), **go)
    with pytest.raises(soap.InputError, match=r"another run: data differ"):
        train(tiny_model(), **{**go, "data": dataclasses.replace(images(), sha256="1" * 64)})
    with pytest.raises(soap.InputError, match=r"another run: note differ"):
        train(tiny_model(), **go, metadata={"note": "x"})
    monkeypatch.setattr(checkpoint, "__version__", "0.0.0")
    with pytest.raises(soap.InputError, match=r"another run: version differ"):
        train(tiny_model(), **go)
    assert (tmp_path / checkpoint.NAME).read_bytes() == before


def test_older_checkpoint_without_version_resumes(tmp_path, whole):
    out = tmp_path / "run"
    stopped(out, 5)
    tensors, metadata = tensor_files.load_tensors(out / checkpoint.NAME)
    state = json.loads(metadata["state"])
    del state["identity"]["version"], state["identity"]["architecture"]
    tensor_files.save_tensors(out / checkpoint.NAME, tensors, {"state": json.dumps(state)})
    model = tiny_model(seed=9)
    assert train(model, images(), SCHEDULE, out=out, resume=True).finished
    assert weights(model) == whole


def test_file_that_is_not_a_checkpoint_is_a_file_error(tmp_path):
    for metadata in ({}, {"state": "[]"}, {"state": '{"identity": 3}'}, {"state": "{"}):
        tensor_files.save_tensors(tmp_path / checkpoint.NAME, {"w": torch.ones(1)}, metadata)
        with pytest.raises(soap.FileError, match="not a training checkpoint"):
            train(tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True)


def test_recipes_are_compared_by_value_not_by_comments(tmp_path):
    recipe = {"recipe": "# first\nlr = 1"}
    train(tiny_model(), images(), SCHEDULE, out=tmp_path, metadata=recipe, stop=StopAfter(2))
    with pytest.raises(soap.InputError, match="another run: recipe differ"):
        train(tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True, metadata={"recipe": "lr = 2"})
    done = train(tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True, metadata={"recipe": "lr = 1  # other"})
    assert done.finished
