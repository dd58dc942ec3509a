"""The examples of the figures: chosen by label, as attack and purifier leave them."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import noise_images, state_of, tiny_model

import soap
from soap import SOAP, InputError
from soap.attacks import FGSM, PGD
from soap.data import Dataset
from soap.paper import figure_records
from soap.paper.figure_records import Examples, as_uint8, make_examples

ATTACKS = {"fgsm": FGSM(eps=0.2), "pgd": PGD(eps=0.3, step_size=0.1, steps=4)}


def images() -> Dataset:
    y = torch.tensor([2, 2, 0, 3, 0, 2, 3, 3, 0, 2, 1])
    return Dataset(name="noise", split="test", x=noise_images(11), y=y, classes=tuple("abcd"), sha256="e" * 64)


@pytest.mark.parametrize("task", ["reconstruction", "rotation"])
def test_against_the_same_by_hand(task):
    model, data = tiny_model(task), images()
    before, calls = state_of(model), []
    shown = make_examples(model, data, ATTACKS, watch=lambda *call: calls.append(call[1:]))
    assert state_of(model) == before
    assert calls == [(1, 2), (2, 2)]
    assert shown.places == (2, 10, 0, 3)
    assert shown.truth == (0, 1, 2, 3)
    assert shown.columns == ("clean", "fgsm", "fgsm, purified", "pgd", "pgd, purified")
    assert shown.attacks == ("fgsm", "pgd")
    x, y = data.x[[2, 10, 0, 3]], torch.arange(4)
    stages = {("clean", False): x}
    for name, attack in ATTACKS.items():
        stages[name, False] = attack(model, x, y)
        stages[name, True] = SOAP(model)(stages[name, False]).x
    assert len(stages) == len(shown.columns)
    for (name, purified), stage in stages.items():
        k = shown.column(name, purified=purified)
        wanted = np.rint(stage.permute(0, 2, 3, 1).numpy() * 255)
        assert np.array_equal(shown.images[k], wanted)
        assert shown.predictions[k] == tuple(model(stage).argmax(1).tolist())
        if task == "reconstruction":
            seen = model.auxiliary.reconstruct(model, stage).detach().permute(0, 2, 3, 1).numpy()
            assert np.abs(shown.decoded[k] - seen * 255).max() <= 0.501
    assert (shown.decoded.size > 0) == (task == "reconstruction")


def test_it_comes_back_from_its_file(tmp_path):
    shown = make_examples(tiny_model(), images(), ATTACKS)
    path = figure_records.record_path(tmp_path, "examples", shown.model)
    figure_records.save(path, shown)
    back = figure_records.read(path, Examples)
    for field in dataclasses.fields(Examples):
        assert np.array_equal(getattr(back, field.name), getattr(shown, field.name)), field.name
    assert back.images.dtype == np.uint8


def test_an_unknown_attack_has_no_column():
    with pytest.raises(InputError, match="unknown attack 'cw'"):
        make_examples(tiny_model(), images(), ATTACKS).column("cw")


def test_bytes_of_images_are_the_bytes_they_came_from():
    data = soap.data.load("mnist-mini").take(3)
    assert np.array_equal(as_uint8(data.x), (data.x * 255).round().permute(0, 2, 3, 1).numpy())
