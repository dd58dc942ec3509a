"""The reference implementations equal those of the tests and agree with ours."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import GRID, attacked_digits, noise_images, tiny_model

import soap
from soap import recipes
from soap._runtime.isolation import preserved_random_state
from soap.attacks import FGSM, PGD
from soap.bench import reference
from soap.bench.batches import attack_agreement, purifier_agreement, same_pixels
from soap.bench.reference import PlainTraining

_spec = importlib.util.spec_from_file_location("plain_reading", Path(__file__).parents[1] / "purifiers" / "plain.py")
reading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reading)


@pytest.mark.parametrize("task", ["reconstruction", "rotation", "consistency"])
def test_reference_purification_equals_that_of_the_tests(task):
    model, x = tiny_model(task), noise_images(5)
    got, eps = reference.purify_min_aux(model, x, GRID, gamma=0.1, T=5)
    wanted, radii = reading.plain_min_aux(model, x, GRID, 0.1, 5, reference.LOSS_TIE)
    assert torch.equal(eps, radii)
    assert same_pixels(got, wanted) >= 0.999
    assert all(parameter.grad is None for parameter in model.parameters())
    one = reference.purify(model, x, 0.2, gamma=0.1, T=5)
    assert torch.equal(one, reading.plain_purify(model, x, 0.2, 0.1, 5))


def test_ours_and_reference_purification_agree():
    model = soap.load("mnist-fcn-dr")
    x, _ = attacked_digits(model, 20)
    purifier = soap.SOAP(model)
    plain = reference.purify_min_aux(model, x, purifier.grid, gamma=purifier.step_size, T=purifier.steps)
    out = purifier(x)
    alike = purifier_agreement(model, (out.x, out.eps), plain)
    assert alike["pixels"] >= 0.999
    assert (alike["eps"], alike["labels"]) == (1, 1)


@pytest.fixture(scope="module")
def digits():
    data = soap.data.load("mnist-mini").take(20)
    return soap.load("mnist-fcn-dr"), data.x, data.y


def test_ours_and_reference_pgd_agree(digits):
    model, x, y = digits
    attack = PGD(eps=0.3, step_size=0.03, steps=10)
    alike = attack_agreement(model, x, y, attack(model, x, y), reference.pgd(model, x, y, eps=0.3, gamma=0.03, T=10))
    assert alike["pixels"] >= 0.999
    assert alike["labels"] == 1
    assert alike["fooled_ours"] == alike["fooled_theirs"] > 0.5


def test_different_results_lower_the_agreement():
    model, x = tiny_model(), noise_images(4)
    moved = x.clone()
    moved[0, 0, 0] = 1 - moved[0, 0, 0] / 2  # one row of eight pixels, of 4 * 64
    alike = purifier_agreement(
        model, (x, torch.tensor([0.1, 0.1, 0.2, 0.2])), (moved, torch.tensor([0.1, 0.1, 0.2, 0.3]))
    )
    assert alike["pixels"] == 1 - 8 / 256
    assert alike["eps"] == 0.75


@pytest.mark.parametrize("attack", [None, FGSM(eps=0.1), PGD(eps=0.1, step_size=0.05, steps=3)])
def test_ours_and_reference_training_have_the_same_first_losses(tmp_path, attack):
    recipe = recipes.read("mnist-fcn-no-def" if attack else "mnist-fcn-dr")
    data = soap.data.load("mnist-mini", "train").take(96)
    schedule = replace(recipe.training, epochs=1, batch_size=32)
    plain = PlainTraining(recipes.build(recipe), data, schedule, attack=attack, precision="fp32")
    with preserved_random_state():
        losses = plain.epoch()
    model = recipes.build(recipe)
    done = soap.training.train(model, data, schedule, out=tmp_path, attack=attack)
    alpha = model.auxiliary.alpha if model.purifiable else 0
    ours = done.history[0]["classification"] + alpha * done.history[0]["auxiliary"]
    assert len(losses) == 3
    assert sum(losses) / 3 == pytest.approx(ours, rel=0.1)  # equal to the last bits while draws are the same
