"""Recipes of generative models: from TOML to weights that load again; errors name the file and the key."""

import struct
from dataclasses import replace

import pytest
import torch

import soap
from soap import recipes, zoo
from soap._files import tensor_files
from soap.models import Generator
from soap.purifiers import DefenseGAN
from soap.recipes import generative

GOOD = """
name = "trial"
data = "mnist-mini"
[model]
kind = "wgan"
latent = 4
width = 2
[objective]
critic_steps = 2
[training]
epochs = 1
lr = 1e-3
batch = 32
betas = [0.5, 0.9]
[purifier]
steps = 3
starts = 2
step_size = "1/2"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the path of a generator after one epoch."""
    folder = tmp_path_factory.mktemp("runs")
    images = soap.data.load("mnist-mini", "train").take(64)
    done = recipes.make(generative.parse(GOOD, "test"), images, out=folder, device=torch.device("cpu"))
    assert done.finished
    return folder / "last.safetensors"


@pytest.mark.parametrize("name", generative.names())
def test_bundled_recipe_reads_and_starts_with_its_command(name):
    recipe = generative.read(name)
    assert recipe.name == name
    assert recipe.text.startswith(f"# soap train {name}")
    assert recipe.kind in generative.KINDS
    assert name.endswith(f"-{recipe.data}")
    assert recipes.find(name) == recipe


def test_defense_gan_recipe_builds_generator_and_purifier():
    recipe = generative.read("defense-gan-mnist")
    model = generative.build(recipe)
    assert isinstance(model, Generator)
    assert model.name == "defense-gan-mnist"
    assert model.input_shape == (1, 28, 28)
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) < 4_000_000
    purifier = generative.purifier(recipe, model, steps=7)
    assert isinstance(purifier, DefenseGAN)
    assert (purifier.steps, purifier.starts) == (7, recipe.purifier["starts"])


def test_initial_weights_depend_only_on_the_seed():
    before = torch.get_rng_state()
    first, second = (generative.build(generative.parse(GOOD, "x")).state_dict() for _ in range(2))
    other = generative.build(generative.parse(GOOD.replace("epochs = 1", "epochs = 1\nseed = 7"), "x")).state_dict()
    assert all(first[key].equal(second[key]) for key in first)
    assert not all(first[key].equal(other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_trained_prior_loads_with_its_name_and_settings(trained):
    prior = zoo.load_prior(trained)
    assert isinstance(prior, Generator)
    assert not prior.training
    assert prior.name == "trial"
    assert prior.purification == {"steps": 3, "starts": 2, "step_size": 0.5}
    tensors, metadata = tensor_files.load_tensors(trained)
    assert all(torch.equal(tensors[key], value) for key, value in prior.state_dict().items())
    assert metadata["recipe"] == GOOD == (trained.parent / "recipe.toml").read_text()
    assert zoo.prior_recipe(trained) == generative.parse(GOOD, "test")
    x = soap.data.load("mnist-mini").x[:3]
    assert DefenseGAN(prior, **prior.purification)(x).x.shape == x.shape
    assert zoo.is_prior(trained)
    assert not zoo.is_prior("mnist-fcn-dr")


def test_bundled_priors_and_classifiers_have_separate_names(trained, tmp_path, monkeypatch):
    for name, source in (("defense-gan-mnist", trained), ("mnist-fcn-dr", zoo.weights_path("mnist-fcn-dr"))):
        (tmp_path / f"{name}.safetensors").write_bytes(source.read_bytes())
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path)
    assert zoo.names() == ["mnist-fcn-dr"]
    assert zoo.prior_names() == ["defense-gan-mnist"]
    assert zoo.load_prior("defense-gan-mnist").name == "trial"
    with pytest.raises(soap.InputError, match="holds a generative model, expected a classifier"):
        soap.load("defense-gan-mnist")
    with pytest.raises(soap.InputError, match="holds a classifier, expected a generative model"):
        zoo.load_prior("mnist-fcn-dr")
    (tmp_path / "defense-gan-mnist.safetensors").unlink()
    with pytest.raises(soap.InputError, match="train them with `soap train defense-gan-mnist`"):
        zoo.load_prior("defense-gan-mnist")


def test_missing_or_truncated_file_raises(trained, tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(soap.FileError, match=r"m\.safetensors: no such file"):
        zoo.load_prior(path)
    good = trained.read_bytes()
    for content in (b"", good[:100], good[:-1], struct.pack("<Q", 2**63) + good[8:]):
        path.write_bytes(content)
        with pytest.raises(soap.FileError, match="not a complete safetensors file"):
            zoo.load_prior(path)


BAD_FILES = [
    (lambda t, m: t.pop("layers.0.weight"), "tensor 'layers.0.weight' is nothing"),
    (lambda t, m: t.update(extra=torch.zeros(2)), r"tensor 'extra' is \[2\], expected nothing"),
    (lambda t, m: t["layers.7.bias"].fill_(float("nan")), "'layers.7.bias' has NaN or infinite values"),
    (lambda t, m: m.pop("recipe"), "contains no recipe"),
    (lambda t, m: m.update(recipe="name ="), "the recipe inside does not build"),
    (lambda t, m: m.update(recipe=m["recipe"].replace("width = 2", "width = 3")), "do not belong together"),
    (lambda t, m: m.update(recipe=m["recipe"].replace('"wgan"', '"wagn"')), "does not build.*did you mean wgan"),
    (lambda t, m: m.update(recipe=m["recipe"].replace("starts = 2", "starts = 0")), r"does not build.*starts \(R\)"),
]


@pytest.mark.parametrize(("change", "message"), BAD_FILES, ids=[message[:30] for _, message in BAD_FILES])
def test_weights_that_do_not_fit_their_recipe_raise(trained, tmp_path, change, message):
    tensors, metadata = tensor_files.load_tensors(trained)
    change(tensors, metadata)
    tensor_files.save_tensors(tmp_path / "m.safetensors", tensors, metadata)
    with pytest.raises(soap.FileError, match=message):
        zoo.load_prior(tmp_path / "m.safetensors")


BAD = [
    ("epochs = 1", "epoch = 1", r"unknown key in \[training\] 'epoch'; did you mean epochs"),
    ("[purifier]", "[purifer]", "unknown key in recipe 'purifer'; did you mean purifier"),
    ("epochs = 1", "", r"missing key in \[training\] 'epochs'"),
    ("lr = 1e-3", "lr = -1.0", "lr is -1.0"),
    ("betas = [0.5, 0.9]", "betas = [0.5, 1.5]", "beta is 1.5"),
    ('kind = "wgan"', "kind = 3", r"\[model\] has kind = 3; expected a name in quotes"),
    ('name = "trial"', 'name = "../../elsewhere"', "expected only letters, digits"),
    ("[model]", "[[model]]", "expected a section"),
    ("name =", "name ==", "not valid TOML"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new or f"no {old}" for old, new, _ in BAD])
def test_mistake_in_a_recipe_raises_an_error_that_names_file_and_key(old, new, message):
    assert old in GOOD
    with pytest.raises(soap.InputError, match=message) as error:
        generative.parse(GOOD.replace(old, new), "my.toml")
    assert str(error.value).startswith("my.toml: ")


BAD_TO_MAKE = [
    ('kind = "wgan"', 'kind = "gan"', "unknown kind of generative model 'gan'; did you mean wgan"),
    ("latent = 4", "latnet = 4", "unknown option of a wgan 'latnet'; did you mean latent"),
    ("latent = 4", "latent = 0", "latent is 0"),
    ("starts = 2", "strats = 2", r"unknown key in \[purifier\] 'strats'; did you mean starts"),
    ("starts = 2", "starts = 0", r"starts \(R\) is 0"),
    ("critic_steps = 2", "critics = 2", r"unknown key in \[objective\] 'critics'; did you mean critic_steps"),
    ("critic_steps = 2", "critic_steps = 0", "critic_steps is 0"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_TO_MAKE, ids=[new for _, new, _ in BAD_TO_MAKE])
def test_mistake_in_options_raises_before_any_work(old, new, message, tmp_path):
    recipe, images = generative.parse(GOOD.replace(old, new), "x"), soap.data.load("mnist-mini", "train").take(64)
    with pytest.raises(soap.InputError, match=message):
        recipes.make(recipe, images, out=tmp_path / "out", device=torch.device("cpu"))
    assert not (tmp_path / "out").exists()


def test_find_reads_both_kinds_of_recipe_by_name_or_path(tmp_path):
    (tmp_path / "own.toml").write_text(GOOD)
    assert recipes.find(tmp_path / "own.toml") == generative.read(tmp_path / "own.toml")
    (tmp_path / "joint.toml").write_text(recipes.read("mnist-fcn-dr").text)
    assert recipes.find(tmp_path / "joint.toml") == recipes.find("mnist-fcn-dr") == recipes.read("mnist-fcn-dr")
    with pytest.raises(soap.InputError, match="did you mean defense-gan-mnist"):
        recipes.find("defense-gan-mnits")
    with pytest.raises(soap.InputError, match="did you mean defense-gan-mnist"):
        generative.read("defense-gan-mnits")
    with pytest.raises(soap.FileError, match=r"gone\.toml: no such file"):
        recipes.find(tmp_path / "gone.toml")


@pytest.mark.parametrize("name", generative.names())
def test_changed_recipe_lists_the_changes_in_its_text(name):
    old = generative.read(name)
    new = recipes.revised(old, data="mnist-mini", epochs=old.training.epochs + 1, seed=7)
    training = replace(old.training, epochs=old.training.epochs + 1, seed=7)
    assert new == replace(old, data="mnist-mini", training=training, text=new.text)
    assert generative.parse(new.text, "test") == new
    assert new.text.startswith(old.text)
    assert f"\nepochs = {old.training.epochs + 1}\n" in new.text.partition("[changed]")[2]
    assert recipes.revised(old) == old
    assert recipes.with_comment(old, "A trial.").text == f"# A trial.\n{old.text}"
