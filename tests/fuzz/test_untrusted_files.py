"""Cases found by the fuzzer: untrusted recipes, rows and weights raise quickly, and errors name the file."""

import json
import struct
import threading
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

from soap import recipes, zoo
from soap._files import tensor_files
from soap.errors import FileError, InputError
from soap.recipes import generative
from soap.recipes.typed_options import check_types, parameter_limit
from soap.results import Store, from_json

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

RECIPE = recipes.read("mnist-fcn-dr").text
GAN = generative.read("defense-gan-mnist").text

BAD_VALUES = {
    "text for a number": ("lr = 0.01", 'lr = "fast"', r"key in \[training\]: lr is 'fast'; expected a finite number"),
    "list for a number": ("lr = 0.01", "lr = [1]", r"lr is \(1,\); expected a finite number"),
    "nan": ("lr = 0.01", "lr = nan", "lr is nan; expected a finite number"),
    "boolean for a number": ("lr = 0.01", "lr = true", "lr is True; expected a finite number"),
    "beyond a float": ("lr = 0.01", f"lr = {10**400}", "lr is 1000.*; expected a finite number"),
    "a fraction beyond a float": ("lr = 0.01", f'lr = "{10**400}/3"', "is not a number or a fraction like"),
    "more digits than Python takes": ("lr = 0.01", f"lr = {'9' * 5000}", "not valid TOML"),
    "number for a list": (
        "milestones = [0.5]",
        "milestones = 1",
        "milestones is 1; expected a list, each item a finite",
    ),
    "texts for numbers": ("milestones = [0.5]", 'milestones = ["a"]', "expected a list, each item a finite number"),
    "fraction of an epoch": ("epochs = 100", "epochs = 1.5", "epochs is 1.5; expected an integer"),
    "a seed of 65 bits": (
        "epochs = 100",
        f"epochs = 1\nseed = {2**64}",
        "seed is 18446744073709551616; expected an integer",
    ),
    "table for a number": (
        "steps = 5",
        "steps = {a = 1}",
        r"key in \[purifier\]: steps is {'a': 1}; expected an integer",
    ),
    "lists in lists": ("steps = 5", "steps = " + "[" * 3000, "not valid TOML"),
}
BAD_SIZES = {
    "text for a rate": ("dropout = 0.0", 'dropout = "none"', "of the fcn architecture: dropout is 'none'; expected"),
    "rate above 1": ("dropout = 0.0", "dropout = 7.0", "the fcn of mnist-fcn-dr cannot be built .*dropout"),
    "negative number of classes": ("dropout = 0.0", "classes = -3", "the fcn of mnist-fcn-dr cannot be built"),
    "more than memory": ("dropout = 0.0", f"classes = {2**62}", "the fcn of mnist-fcn-dr cannot be built"),
    "no sides": ('architecture = "fcn"', 'architecture = "cnn"\ninputs = []', "cnn of mnist-fcn-dr cannot be built"),
    "text for the noise": (
        "noise = 0.5",
        'noise = "loud"',
        r"key in \[auxiliary\]: noise is 'loud'; expected a finite",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_recipe_with_a_wrong_value_raises(tmp_path, old, new, message):
    assert old in RECIPE
    path = tmp_path / "own.toml"
    path.write_text(RECIPE.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        recipes.find(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("old", "new", "message"), BAD_SIZES.values(), ids=BAD_SIZES)
def test_recipe_with_impossible_sizes_raises(old, new, message):
    text = RECIPE.replace(old, new).replace("dropout = 0.0\n" if "cnn" in new else "\0", "")
    with pytest.raises(InputError, match=message):
        recipes.build(recipes.parse(text, "recipe"))


@pytest.mark.parametrize("content", [b"\xff\xfen\0a\0", RECIPE.encode()[:-5] + b"\x80"])
def test_recipe_that_is_not_utf8_raises(tmp_path, content):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    for read in (recipes.read, recipes.find, generative.read):
        with pytest.raises(FileError, match=r"own\.toml: not UTF-8 text"):
            read(path)


def test_types_are_checked_against_the_annotations():
    def takes(*, whole: int = 0, pair: tuple[float, float] = (0, 0), name: str | None = None, free=None):
        raise NotImplementedError

    for fits in ({"whole": 7}, {"pair": (1, 2.5)}, {"name": None}, {"name": "a"}, {"free": {}}, {"unknown": 3}):
        check_types(takes, fits, "key")
    for wrong in ({"whole": 7.0}, {"whole": True}, {"pair": (1.0,)}, {"pair": [1.0, 2.0]}, {"name": 3}):
        with pytest.raises(InputError, match=r"key: (whole|pair|name) is .*; expected "):
            check_types(takes, wrong, "key")


def weights(tmp_path, recipe, tensors):
    path = tmp_path / "own.safetensors"
    path.write_bytes(safetensors.torch.save(tensors, {"recipe": recipe}))
    return path


def pixelcnn(**sizes):
    text = generative.read("pixeldefend-cifar10").text
    for name, value in sizes.items():
        text = "\n".join(f"{name} = {value}" if line.startswith(f"{name} =") else line for line in text.splitlines())
    return text


LARGE = {
    "classes": RECIPE.replace("dropout = 0.0", "dropout = 0.0\nclasses = 1000000000"),
    "sides": RECIPE.replace("dropout = 0.0", "inputs = [1, 100000, 100000]"),
    "beyond 64 bits": RECIPE.replace("dropout = 0.0", f"classes = {2**62}"),
    "latent": GAN.replace("latent = 128", "latent = 1000000000"),
    "width": GAN.replace("width = 64", "width = 1000000"),
    "blocks": pixelcnn(blocks=10**9),
    "channels": pixelcnn(channels=10**6),
}


@pytest.mark.parametrize("recipe", LARGE.values(), ids=LARGE)
def test_short_recipe_cannot_build_a_huge_network(tmp_path, recipe):
    """Each of these networks would exhaust the memory."""
    path = weights(tmp_path, recipe, {"a": torch.zeros(1)})
    load = zoo.load_prior if "kind =" in recipe else zoo.load
    with pytest.raises(FileError, match=r"own\.safetensors: (tensor .* do not belong together|the recipe inside)"):
        load(path)


@pytest.mark.parametrize("kind", [torch.float64, torch.int32, torch.uint8, torch.bool])
def test_weights_of_another_dtype_raise(tmp_path, kind):
    tensors = {key: value.to(kind) for key, value in zoo.load("mnist-fcn-dr").state_dict().items()}
    with pytest.raises(FileError, match=rf"is \[.*\] of {kind}, expected"):
        zoo.load(weights(tmp_path, RECIPE, tensors))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_load(tmp_path, kind):
    whole = zoo.load("mnist-fcn-dr").state_dict()
    model = zoo.load(weights(tmp_path, RECIPE, {key: value.to(kind) for key, value in whole.items()}))
    assert all(torch.equal(value, whole[key].to(kind).float()) for key, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "C64"])
def test_dtypes_without_a_finite_check_are_refused(tmp_path, kind):
    size = 8 if kind == "C64" else 1
    header = json.dumps({"a": {"dtype": kind, "shape": [1], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "own.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    with pytest.raises(FileError, match=r"own\.safetensors: tensor 'a' is torch\..* real numbers"):
        tensor_files.load_tensors(path)


def test_header_length_is_limited(tmp_path):
    path = tmp_path / "own.safetensors"
    path.write_bytes(struct.pack("<Q", 2**24 + 1) + b"{}" + b" " * (2**24 - 1))
    with pytest.raises(FileError, match=r"header .* 16,777,217 bytes, expected at most 16,777,216"):
        tensor_files.load_tensors(path)


def test_parameter_limit_applies_to_its_thread_and_block_only():
    with parameter_limit(2):
        nn.Linear(1, 1)
        others = threading.Thread(target=lambda: made.append(nn.Linear(1, 1)))
        made: list[nn.Module] = []
        others.start()
        others.join()
    assert len(made) == 1
    with parameter_limit(1), pytest.raises(InputError, match="more than 1 parameter tensors"):
        nn.Linear(1, 1)
    nn.Sequential(*(nn.Linear(1, 1) for _ in range(5)))


ROW = Store(zoo.weights_path("mnist-fcn-dr").with_suffix(".jsonl")).read()[0]

BAD_ROWS = {
    "seconds are text": ({"seconds": "1"}, "its seconds is '1'"),
    "seconds are infinite": ({"seconds": float("inf")}, "its seconds is inf"),
    "seconds are NaN": ({"seconds": float("nan")}, "its seconds is nan"),
    "a name is a number": ({"model": 3}, "its model is 3"),
    "a name is a lone surrogate": ({"model": "\ud800"}, "lone surrogate"),
    "measures are a list": ({"measures": [1]}, "its measures is "),
    "a measure is null": ({"measures": {"a": None}}, "its measures is "),
    "a measure is NaN": ({"measures": {"a": float("nan")}}, "its measures is "),
    "a count is a boolean": ({"n": True, "correct": True}, "its n is True"),
    "a count is a fraction": ({"n": 10.5, "correct": 3}, "its n is 10.5"),
    "a count is beyond a float": ({"n": 10**400, "correct": 0}, "its n is 1000"),
    "a count of zero": ({"n": 0, "correct": 0}, "0 correct of 0 is not a count"),
    "more correct than samples": ({"n": 3, "correct": 4}, "4 correct of 3 is not a count"),
}


@pytest.mark.parametrize(("change", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_row_with_an_invalid_value_is_refused(change, message):
    """Also with a matching key, which can be recomputed for a changed row."""
    made = {**ROW.as_json(), **change}
    if "n" not in change:
        made["key"] = replace(ROW, **change).key
    with pytest.raises(ValueError, match=message):
        from_json(made)


@pytest.mark.parametrize(("field", "value"), [("seed", "0"), ("device", None), ("commit", 7), ("batch_size", 1.5)])
def test_row_with_an_invalid_provenance_is_refused(field, value):
    made = ROW.as_json()
    made["provenance"] = {**made["provenance"], field: value}
    with pytest.raises(ValueError, match=f"its {field} is {value!r}"):
        from_json(made)


def test_valid_row_is_accepted():
    assert from_json(json.loads(json.dumps(ROW.as_json()))) == ROW
