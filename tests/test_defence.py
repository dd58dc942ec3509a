"""A purifier before a classifier, as other libraries see it."""

import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.gradient_rules import GRADIENT_RULES


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_defended_classifies_the_purified_image_in_any_context(context):
    model = tiny_model()
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify)
    x = noise_images(3)
    expected = model(purify(x).x)
    with context():
        assert torch.equal(robust(noise_images(3)), expected)


def test_defended_passes_gradients_straight_through_and_stays_in_evaluation_mode():
    model = tiny_model()
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify).train()
    assert not any(module.training for module in robust.modules())
    x = noise_images(3).requires_grad_()
    robust(x).square().sum().backward()
    point = purify(x).x.requires_grad_()
    model(point).square().sum().backward()
    torch.testing.assert_close(x.grad, point.grad)


def test_whoever_switches_the_model_to_training_later_gets_the_same_answers():
    """Its batch norms took the batch's statistics and counted it."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3))
    robust, x = soap.Defence(model, soap.purifiers.AntiAdversary(model)), noise_images(4)
    wanted, state = robust(x), {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    assert torch.equal(robust(x), wanted)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    robust(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model[-1].parameters())


def test_a_purifier_may_be_any_network_and_is_passed_straight_through():
    model, blur = tiny_model(), nn.AvgPool2d(3, stride=1, padding=1)
    x = noise_images(3).requires_grad_()
    soap.Defence(model, blur)(x).square().sum().backward()
    point = blur(x).detach().requires_grad_()
    model(point).square().sum().backward()
    torch.testing.assert_close(x.grad, point.grad)
    with pytest.raises(soap.InputError, match=r"the purifier returned .*.*, expected purified images of shape"):
        soap.Defence(model, lambda x: x[:1])(x)


def test_defence_without_purifier_gives_the_classifiers_logits_and_has_no_purifier_rules():
    model = tiny_model()
    defence, x = soap.Defence(model), noise_images(3)
    assert torch.equal(defence(x), model.eval()(x))
    assert (defence.classifier, defence.purifier, defence.purifies) == (model, None, False)
    assert defence.rules() == ("bare", "defended")
    assert defence.seen_by("bare") is defence.seen_by("defended") is model
    assert defence.seen_by("straight-through") is None


def test_defence_names_the_rules_that_its_purifier_supports():
    model = tiny_model()
    every = ("bare", "defended", "straight-through", "start", "iterates", "unrolled")
    assert soap.Defence(model, soap.SOAP(model)).rules() == every
    assert soap.Defence(model, lambda x: x).rules() == every[:4]


def test_seen_by_gives_the_classifier_the_defence_or_a_gradient_rule():
    model = tiny_model()
    defence, x = soap.Defence(model, soap.SOAP(model)), noise_images(3)
    assert defence.seen_by("bare") is model
    assert defence.seen_by("defended") is defence
    for name, rule in GRADIENT_RULES.items():
        seen = defence.seen_by(name, scale=3.0)
        assert type(seen) is rule
        assert torch.equal(seen(x), defence(x))
    assert seen.scale == 3.0
    assert soap.Defence(model, lambda x: x).seen_by("unrolled") is None
    with pytest.raises(soap.InputError, match=r"unknown gradient rule 'unroled'.*unrolled"):
        defence.seen_by("unroled")


def test_defence_of_module_has_no_separate_classifier():
    module, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), noise_images(4)
    defence = soap.Defence.of_module(module, name="mine")
    assert (defence.classifier, defence.purifier, defence.name) == (None, None, "mine")
    assert defence.rules() == ("bare", "defended")
    assert defence.seen_by("bare") is defence.seen_by("defended") is module
    assert defence.classes(x) == 3
    assert torch.equal(defence.labels(x), module(x).argmax(1))


def test_defence_takes_the_name_of_its_classifier():
    assert soap.Defence(tiny_model()).name == tiny_model().name
    assert soap.Defence(nn.Flatten()).name == "Flatten"
    assert soap.Defence(nn.Flatten(), name="mine").name == "mine"


def test_constructing_a_defence_leaves_the_mode_of_its_classifier():
    model = tiny_model().train()
    defence = soap.Defence(model, soap.SOAP(model))
    assert model.training
    assert not defence.training


def test_state_dict_prefixes_stay_those_of_stored_fingerprints():
    model = tiny_model()
    names = set(soap.Defence(model, nn.BatchNorm2d(1)).state_dict())
    assert {name.split(".")[0] for name in names} == {"model", "purify"}
