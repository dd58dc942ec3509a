"""tools/bundle.py: weights in half precision, and a replaced recipe of which only [purifier] may differ."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bundle import bundle

from soap import zoo
from soap._files import tensor_files
from soap.errors import InputError
from soap.recipes import generative


def trained_generator(folder: Path) -> Path:
    """Write untrained weights in the format of a training run."""
    recipe = generative.read("defense-gan-mnist")
    path = folder / "last.safetensors"
    tensor_files.save_tensors(path, generative.build(recipe).state_dict(), {"recipe": recipe.text, "precision": "fp32"})
    return path


def test_half_precision_rounds_to_eleven_bits_and_halves_the_file(tmp_path):
    source, target = zoo.weights_path("mnist-fcn-dr"), tmp_path / "half.safetensors"
    bundle(source, target, half=True)
    assert target.stat().st_size < 0.51 * source.stat().st_size
    whole, half = zoo.load(source), zoo.load(target)
    for name, value in whole.state_dict().items():
        got = half.state_dict()[name]
        assert got.dtype == value.dtype
        if value.is_floating_point():
            assert torch.all((got - value).abs() <= value.abs() * 2.0**-11 + 2.0**-24), name
        else:
            assert torch.equal(got, value), name
    assert half.training_spec == replace(whole.training_spec, stored="half precision")


def test_weights_are_unchanged_without_half_precision(tmp_path):
    source, target = zoo.weights_path("mnist-fcn-dr"), tmp_path / "same.safetensors"
    bundle(source, target)
    before, after = tensor_files.load_tensors(source), tensor_files.load_tensors(target)
    assert after[1] == before[1]
    assert all(torch.equal(after[0][name], value) for name, value in before[0].items())


def test_recipe_with_another_purifier_is_accepted(tmp_path):
    text = generative.read("defense-gan-mnist").text
    (tmp_path / "other.toml").write_text(text.replace("\nsteps = 50", "\nsteps = 77"))
    bundle(trained_generator(tmp_path), tmp_path / "g.safetensors", recipe=tmp_path / "other.toml")
    assert zoo.prior_recipe(tmp_path / "g.safetensors").purifier["steps"] == 77


def test_recipe_with_another_training_is_refused(tmp_path):
    text = generative.read("defense-gan-mnist").text
    (tmp_path / "other.toml").write_text(text.replace("lr = 5e-4", "lr = 4e-4"))
    with pytest.raises(InputError, match="more than"):
        bundle(trained_generator(tmp_path), tmp_path / "g.safetensors", recipe=tmp_path / "other.toml")
    assert not (tmp_path / "g.safetensors").exists()
