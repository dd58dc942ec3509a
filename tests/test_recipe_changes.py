"""`revised`: a changed recipe's text has its own values, a table of the changes, and reads back equal."""

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
    assert new.text.startswith(old.text)
    assert tomllib.loads(new.text)["changed"]["epochs"] == old.training.epochs + 1


@pytest.mark.parametrize("name", ["cifar10-wide-resnet28-lc", "mnist-fcn-dr"])
def test_dropout_is_an_option_of_the_network(name):
    old = read(name)
    new = revised(old, dropout=0.25)
    assert new == replace(old, model={**old.model, "dropout": 0.25}, text=new.text)
    assert parse(new.text, "test") == new
    assert new.text.endswith("\n[changed]\ndropout = 0.25\n")


def test_equal_values_change_nothing():
    recipe = read("mnist-fcn-dr")
    assert revised(recipe) == recipe
    assert revised(recipe, data=recipe.data, epochs=recipe.training.epochs, seed=recipe.training.seed) == recipe


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_any_data_set_name_is_written_correctly(name):
    assert revised(FCN, data=name).data == name
    assert tomllib.loads(revised(FCN, data=name).text)["changed"] == {"data": name}


def test_every_toml_form_of_a_recipe_can_be_changed():
    head, rest = read("mnist-fcn-dr").text.split("[training]")
    text = (
        'training = {epochs = 3, lr = 1e-3, augment = ["flip"], seed = 1}\n' + head + rest[rest.index("[purifier]") :]
    )
    old = parse(text.replace("step_size = 0.1", 'step_size = "1/10"').replace("[model]", "[ model ]"), "test")
    new = revised(revised(old, seed=2), epochs=5)
    assert new == replace(old, training=replace(old.training, seed=2, epochs=5), text=new.text)
    assert new.training.augment == ("flip",)
    assert tomllib.loads(new.text)["changed"] == {"seed": 2, "epochs": 5}


def test_change_to_an_invalid_value_raises():
    with pytest.raises(InputError, match="epochs is 0"):
        revised(read("mnist-fcn-dr"), epochs=0)


@pytest.mark.parametrize("line", ["lr = 0.1", "epochs = 'many'", "[changed.more]"])
def test_invalid_changes_in_a_text_are_an_error(line):
    with pytest.raises(InputError):
        parse(f"{FCN.text}\n[changed]\n{line}\n", "test")


def test_comment_goes_to_the_head():
    recipe = read("mnist-fcn-dr")
    new = with_comment(recipe, "A trial.")
    assert new.text.startswith("# A trial.\n")
    assert parse(new.text, "test") == replace(recipe, text=new.text)
