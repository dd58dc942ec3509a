import pytest
import torch

import soap
from soap.errors import InputError
from soap.evaluation import certify


@pytest.fixture(scope="module")
def digits():
    return soap.data.load("mnist-mini").take(60)


def test_certified_images_survive_attacks_on_the_whole_defence(digits):
    model = soap.load("mnist-cnn-certified")
    found = certify(model, digits, eps=0.3, batch_size=25)
    assert found.certified.n == found.clean.n == 60
    assert 0.7 < found.certified.accuracy <= found.clean.accuracy
    defence = soap.Defence(model, soap.SOAP(model))
    attack = soap.attacks.APGD(eps=0.3, steps=20, loss="margin")
    x_adv = attack(defence.seen_by("unrolled", scale=3.0), digits.x, digits.y)
    survived = (defence.labels(x_adv) == digits.y).float().mean()
    assert survived >= found.certified.accuracy


def test_certified_accuracy_falls_with_the_radius_and_does_not_depend_on_batches(digits):
    model = soap.load("mnist-cnn-certified")
    counts = [certify(model, digits, eps=eps).certified.correct for eps in (0.01, 0.2, 0.3, 0.45)]
    assert counts == sorted(counts, reverse=True)
    assert counts[2] == certify(model, digits, eps=0.3, batch_size=7).certified.correct


def test_network_without_certified_training_is_certified_at_tiny_radii_only(digits):
    model = soap.load("mnist-cnn-no-def")
    tiny, whole = (certify(model, digits, eps=eps).certified for eps in (1e-5, 0.3))
    assert tiny.accuracy > 0.9
    assert whole.correct == 0


def test_model_with_another_task_is_refused(digits):
    with pytest.raises(InputError, match="Reconstruction"):
        certify(soap.load("mnist-cnn-dr"), digits, eps=0.3)


def test_mode_of_the_model_is_unchanged(digits):
    model = soap.load("mnist-cnn-certified").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    certify(model, digits, eps=0.3)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
