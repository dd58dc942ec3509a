"""`revised`: a changed recipe's text holds the new values, lists the changes, and reads back equal."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.errors import InputError
from soap.recipes import names, parse, read, revised, with_comment

FCN = read("mnist-fcn-dr")


@pytest.mark.parametrize("name", names())
def test_text_has_the_new_values_and_keeps_its_head(name):
    old = read(name)
    new = revised(old, data="mnist-mini", epochs=old.training.epochs + 1, seed=7, decay="cosine")
    assert new == replace(
        old,
        data="mnist-mini",
        training=replace(old.training, epochs=old.training.epochs + 1, seed=7, decay="cosine"),
        text=new.text,
    )
    assert parse(new.text, "test") == new
    head = old.text.split("\n\n")[0]
    assert new.text.startswith(f'{head}\n# Changed for this run: data = "mnist-mini"; the recipe has "{old.data}".\n')
    assert (
        f"# Changed for this run: epochs = {old.training.epochs + 1}; the recipe has {old.training.epochs}.\n"
        in new.text
    )


@pytest.mark.parametrize(("name", "before"), [("cifar10-wide-resnet28-lc", "not set"), ("mnist-fcn-dr", "0.0")])
def test_dropout_is_an_option_of_the_network(name, before):
    old = read(name)
    new = revised(old, dropout=0.25)
    assert new == replace(old, model={**old.model, "dropout": 0.25}, text=new.text)
    assert parse(new.text, "test") == new
    assert f"# Changed for this run: dropout = 0.25; the recipe has {before}.\n" in new.text


def test_equal_values_change_nothing():
    recipe = read("mnist-fcn-dr")
    assert revised(recipe) == recipe
    assert revised(recipe, data=recipe.data, epochs=recipe.training.epochs, seed=recipe.training.seed) == recipe


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_any_data_set_name_is_written_correctly(name):
    assert tomllib.loads(revised(FCN, data=name).text)["data"] == name


def test_every_toml_form_of_a_recipe_can_be_changed():
    head, rest = read("mnist-fcn-dr").text.split("[training]")
    text = (
        'training = {epochs = 3, lr = 1e-3, augment = ["flip"], seed = 1}\n' + head + rest[rest.index("[purifier]") :]
    )
    old = parse(text.replace("step_size = 0.1", 'step_size = "1/10"').replace("[model]", "[ model ]"), "test")
    new = revised(revised(old, seed=2), epochs=5)
    assert new == replace(old, training=replace(old.training, seed=2, epochs=5), text=new.text)
    assert new.training.augment == ("flip",)
    assert new.text.count("# Changed for this run") == 2


def test_change_to_an_invalid_value_raises():
    with pytest.raises(InputError, match="epochs is 0"):
        revised(read("mnist-fcn-dr"), epochs=0)


def test_comment_goes_to_the_head():
    recipe = read("mnist-fcn-dr")
    new = with_comment(recipe, "A trial.")
    assert new.text.startswith("# A trial.\n")
    assert parse(new.text, "test") == replace(recipe, text=new.text)
