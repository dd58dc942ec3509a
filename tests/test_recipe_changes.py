"""A changed recipe: its text tells the change, and nothing else changes."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.errors import InputError
from soap.recipes import names, noted, parse, read, revised

FCN = read("mnist-fcn-dr")


@pytest.mark.parametrize("name", names())
def test_the_text_has_the_new_values_and_keeps_its_comments(name):
    old = read(name)
    new = revised(old, data="mnist-mini", epochs=old.training.epochs + 1, seed=7, decay="cosine")
    assert new == replace(
        old,
        data="mnist-mini",
        training=replace(old.training, epochs=old.training.epochs + 1, seed=7, decay="cosine"),
        text=new.text,
    )
    assert parse(new.text, "test") == new
    assert f"it was {old.training.epochs}" in new.text
    kept = [line for line in old.text.splitlines() if line.startswith("#")]
    assert [line for line in new.text.splitlines() if line.startswith("#")] == kept


@pytest.mark.parametrize(("name", "said"), [("cifar10-wide-resnet28-lc", "added"), ("mnist-fcn-dr", "it was 0.0")])
def test_dropout_goes_into_the_network(name, said):
    old = read(name)
    new = revised(old, dropout=0.25)
    assert new == replace(old, model={**old.model, "dropout": 0.25}, text=new.text)
    assert parse(new.text, "test") == new
    assert [said in line for line in new.text.splitlines() if line.startswith("dropout = 0.25")] == [True]


def test_nothing_asked_changes_nothing():
    recipe = read("mnist-fcn-dr")
    assert revised(recipe) == recipe
    assert revised(recipe, data=recipe.data, epochs=recipe.training.epochs, seed=recipe.training.seed) == recipe


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_any_data_set_name_survives(name):
    assert tomllib.loads(revised(FCN, data=name).text)["data"] == name


def test_a_value_in_another_section_is_left_alone():
    text = (
        read("mnist-fcn-dr")
        .text.replace("[training]", "[training]  # slow\nseed = 1  # one")
        .replace("[model]", "[ model ]")
    )
    old = parse(text, "test")
    new = revised(old, seed=2)
    assert (old.training.seed, new.training.seed) == (1, 2)
    assert "seed = 2  # changed for this run; it was 1" in new.text


def test_text_that_cannot_be_changed_is_refused():
    text = read("mnist-fcn-dr").text
    head, rest = text.split("[training]")
    tail = rest[rest.index("[purifier]") :]
    inline = parse("training = {epochs = 3, lr = 0.1}\n" + head + tail, "test")
    with pytest.raises(InputError, match="cannot write the changed values"):
        revised(inline, epochs=5)
    with pytest.raises(InputError, match="epochs is 0"):
        revised(read("mnist-fcn-dr"), epochs=0)


def test_a_remark_is_a_comment():
    recipe = read("mnist-fcn-dr")
    new = noted(recipe, "Trained on a train.")
    assert new.text.startswith("# Trained on a train.\n")
    assert parse(new.text, "test") == replace(recipe, text=new.text)
