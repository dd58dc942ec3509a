"""The bundled models: they load, their result rows belong to them, and bad files raise."""

import json
import struct
from dataclasses import replace

import pytest
import torch

import soap
from soap._files import tensor_files
from soap.evaluation import fingerprint
from soap.results import Store

MIN_ACCURACY = {  # per cent in the paper's protocol: (clean, FGSM, PGD) after min-aux purification
    "mnist-fcn-dr": (97.0, 63.0, 60.0),
    "mnist-cnn-dr": (98.7, 85.0, 82.0),
}


def test_bundled_models_are_listed_and_small():
    assert set(soap.zoo.names()) >= set(MIN_ACCURACY)
    assert sum(soap.zoo.weights_path(name).stat().st_size for name in MIN_ACCURACY) < 4_000_000


@pytest.mark.parametrize("name", MIN_ACCURACY)
def test_bundled_model_classifies_and_reconstructs_digits(name):
    model = soap.load(name)
    assert model.name == name
    assert not model.training
    data = soap.data.load("mnist-mini").take(300)
    assert (model(data.x).argmax(1) == data.y).float().mean() > 0.96
    assert model.auxiliary.loss(model, data.x).mean() < 0.02


@pytest.mark.parametrize("name", MIN_ACCURACY)
def test_rows_belong_to_the_weights_and_reach_the_papers_accuracy(name):
    rows = [r for r in Store(soap.zoo.weights_path(name).with_suffix(".jsonl")).read() if r.defence.eps == "min-aux"]
    accuracies = {row.attack.name: 100 * row.accuracy for row in rows if row.data == "mnist"}
    assert {row.provenance.weights_sha256 for row in rows} == {fingerprint(soap.load(name))}
    assert {row.n for row in rows} == {10_000}
    for attack, least in zip(("none", "fgsm", "pgd"), MIN_ACCURACY[name], strict=True):
        assert accuracies[attack] >= least


@pytest.mark.parametrize("name", MIN_ACCURACY)
def test_weights_contain_the_bundled_recipe(name):
    _, metadata = tensor_files.load_tensors(soap.zoo.weights_path(name))
    stored, bundled = soap.recipes.parse(metadata["recipe"], "stored"), soap.recipes.read(name)
    assert replace(stored, text="") == replace(bundled, text="")
    assert stored.text.replace("\nbatch = ", "\nbatch_size = ") == bundled.text


def test_loading_does_not_change_the_random_state():
    before = torch.get_rng_state()
    soap.load("mnist-fcn-dr")
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_model_or_device_suggests_the_nearest():
    with pytest.raises(soap.InputError, match="did you mean mnist-fcn-dr"):
        soap.load("mnist-fcn-rd")
    with pytest.raises(soap.InputError, match="unknown device 'gpu'"):
        soap.load("mnist-fcn-dr", device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(soap.InputError, match="torch sees no GPU"):
            soap.load("mnist-fcn-dr", device="cuda")


def test_missing_or_truncated_file_raises(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(soap.FileError, match=r"m\.safetensors: no such file"):
        soap.load(path)
    good = soap.zoo.weights_path("mnist-fcn-dr").read_bytes()
    for length in (0, 4, 7, 8, 100, 2000, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(soap.FileError, match="not a complete safetensors file"):
            soap.load(path)
    path.write_bytes(struct.pack("<Q", 2**63) + good[8:])
    with pytest.raises(soap.FileError, match="not a complete safetensors file"):
        soap.load(path)
    path.write_bytes(struct.pack("<Q", 2) + b"[]")
    with pytest.raises(soap.FileError, match="not a complete safetensors file"):
        soap.load(path)


def rewritten(tmp_path, change):
    tensors, metadata = tensor_files.load_tensors(soap.zoo.weights_path("mnist-fcn-dr"))
    change(tensors, metadata)
    tensor_files.save_tensors(tmp_path / "m.safetensors", tensors, metadata)
    return tmp_path / "m.safetensors"


BAD_FILES = [
    (lambda t, m: t.pop("classifier.weight"), r"tensor 'classifier.weight' is nothing, expected \[10, 128\]"),
    (lambda t, m: t.update(extra=torch.zeros(2)), r"tensor 'extra' is \[2\], expected nothing"),
    (lambda t, m: t.update({"classifier.bias": torch.zeros(9)}), r"'classifier.bias' is \[9\], expected \[10\]"),
    (lambda t, m: t["classifier.bias"].fill_(float("nan")), "'classifier.bias' has NaN or infinite values"),
    (lambda t, m: m.pop("recipe"), "contains no recipe"),
    (lambda t, m: m.update(recipe="name ="), "the recipe inside does not build"),
    (lambda t, m: m.update(recipe=m["recipe"].replace('"dense"', '"conv"')), "do not belong together"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FILES, ids=[message[:30] for _, message in BAD_FILES])
def test_weights_that_do_not_fit_their_recipe_raise(tmp_path, change, message):
    with pytest.raises(soap.FileError, match=message):
        soap.load(rewritten(tmp_path, change))


def test_saved_tensors_are_read_back_bit_for_bit(tmp_path):
    tensors = {"a": torch.rand(3, 4), "b": torch.arange(5)}
    tensor_files.save_tensors(tmp_path / "t.safetensors", tensors, {"note": json.dumps({"x": 1})})
    read, metadata = tensor_files.load_tensors(tmp_path / "t.safetensors")
    assert metadata == {"note": '{"x": 1}'}
    assert all(torch.equal(read[key], tensors[key]) for key in tensors)
