"""Defence: logits, straight-through gradients, evaluation mode and gradient rules."""

import pytest
import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap.gradient_rules import GRADIENT_RULES, MeanOverDraws


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_defence_classifies_the_purified_image_in_any_grad_mode(context):
    model = tiny_model()
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify)
    x = noise_images(3)
    expected = model(purify(x).x)
    with context():
        assert torch.equal(robust(noise_images(3)), expected)


def test_defence_passes_gradients_straight_through_in_evaluation_mode():
    model = tiny_model()
    purify = soap.SOAP(model)
    robust = soap.Defence(model, purify).train()
    assert not any(module.training for module in robust.modules())
    x = noise_images(3).requires_grad_()
    robust(x).square().sum().backward()
    point = purify(x).x.requires_grad_()
    model(point).square().sum().backward()
    torch.testing.assert_close(x.grad, point.grad)


def test_training_mode_of_the_classifier_does_not_change_the_logits():
    """In training mode, batch norm would use and update batch statistics."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3))
    robust, x = soap.Defence(model, soap.purifiers.AntiAdversary(model)), noise_images(4)
    wanted, state = robust(x), {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    assert torch.equal(robust(x), wanted)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    robust(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model[-1].parameters())


def test_a_purifier_may_be_any_module_or_function():
    model, blur = tiny_model(), nn.AvgPool2d(3, stride=1, padding=1)
    x = noise_images(3).requires_grad_()
    assert torch.equal(soap.Defence(model, blur)(x), model(blur(x)))
    with pytest.raises(soap.InputError, match=r"the purifier returned .*.*, expected purified images of shape"):
        soap.Defence(model, lambda x: x[:1])(x)


def gradient_of(defence, x):
    (gradient,) = torch.autograd.grad(defence(x).square().sum(), x)
    return gradient


def test_autograd_goes_through_a_differentiable_purifier():
    model, blur = tiny_model(), nn.AvgPool2d(3, stride=1, padding=1)
    x = noise_images(3).requires_grad_()
    torch.testing.assert_close(gradient_of(soap.Defence(model, blur), x), gradient_of(lambda x: model(blur(x)), x))


def test_autograd_passes_straight_through_a_purifier_whose_own_gradient_is_wrong():
    """Rounding has a zero gradient, and the gradient of a straight-through trick is not that of its values."""
    model = tiny_model()
    x = noise_images(3).requires_grad_()

    def rounded(x):
        return (4 * x).round() / 4

    point = rounded(x).detach().requires_grad_()
    expected = gradient_of(model, point)
    for purify in (rounded, lambda x: 2 * x + (rounded(x) - 2 * x).detach()):
        torch.testing.assert_close(gradient_of(soap.Defence(model, purify), x), expected)


class Declared:
    """A blur that counts its calls and declares a gradient rule."""

    def __init__(self, gradient):
        self.gradient, self.calls = gradient, 0

    def __call__(self, x):
        self.calls += 1
        return torch.nn.functional.avg_pool2d(x, 3, 1, 1)


@pytest.mark.parametrize("gradient", ["exact", "straight-through"])
def test_a_declared_gradient_is_used_without_a_probe(gradient):
    model, blur = tiny_model(), Declared(gradient)
    x = noise_images(3).requires_grad_()
    found = gradient_of(soap.Defence(model, blur), x)
    assert blur.calls == 1
    point = blur(x).detach().requires_grad_()
    expected = {
        "exact": lambda: gradient_of(lambda x: model(blur(x)), x),
        "straight-through": lambda: gradient_of(model, point),
    }
    torch.testing.assert_close(found, expected[gradient]())


def test_the_probe_is_made_once_and_only_for_gradients():
    blur = Declared(None)
    defence, x = soap.Defence(tiny_model(), blur), noise_images(3)
    defence(x)
    assert blur.calls == 1
    gradient_of(defence, x.requires_grad_())
    probed = blur.calls
    gradient_of(defence, x)
    assert blur.calls == probed + 1


def test_our_purifiers_declare_their_gradient_and_that_they_are_not_random():
    model = tiny_model()
    for purifier in (soap.SOAP(model), soap.purifiers.Hedge(model), soap.purifiers.AntiAdversary(model)):
        assert (purifier.gradient, purifier.random) == ("unrolled", False)
        found = soap.Defence(model, purifier).probe(noise_images(4))
        assert (found.exact, found.random) == (False, False)


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
    every = ("bare", "defended", "straight-through", "start", "iterates", "unrolled", "surrogate")
    assert soap.Defence(model, soap.SOAP(model)).rules() == every
    assert soap.Defence(model, lambda x: x).rules() == (*every[:4], "surrogate")


def test_a_probe_or_a_declaration_decides_whether_exact_is_among_the_rules():
    model, x = tiny_model(), noise_images(4)
    for purifier, is_exact in ((lambda x: x.square(), True), (torch.round, False)):
        defence = soap.Defence(model, purifier)
        assert ("exact" in defence.rules(defence.probe(x))) == is_exact
    assert "exact" in soap.Defence(model, Declared("exact")).rules()
    assert "exact" not in soap.Defence(model, Declared("straight-through")).rules()


def test_exact_of_a_network_that_purifies_inside_is_its_own_gradient():
    model, x = nn.Sequential(nn.AvgPool2d(3, 1, 1), tiny_model()).eval(), noise_images(4)
    defence = soap.Defence.of_module(model)
    assert defence.rules(defence.probe(x)) == ("bare", "defended", "exact")
    assert defence.seen_by("exact") is model
    assert soap.Defence(model).seen_by("exact") is None


def test_seen_by_gives_the_classifier_the_defence_or_a_gradient_rule():
    model = tiny_model()
    defence, x = soap.Defence(model, soap.SOAP(model)), noise_images(3)
    assert defence.seen_by("bare") is model
    assert defence.seen_by("defended") is defence
    for name, rule in GRADIENT_RULES.items():
        seen = defence.seen_by(name, scale=3.0, imitation=nn.Identity())
        assert type(seen) is rule
        assert torch.equal(seen(x), defence(x))
    assert defence.seen_by("unrolled", scale=3.0).scale == 3.0
    assert soap.Defence(model, lambda x: x).seen_by("unrolled") is None
    with pytest.raises(soap.InputError, match=r"unknown gradient rule 'unroled'.*unrolled"):
        defence.seen_by("unroled")
    with pytest.raises(soap.InputError, match="fit_surrogate"):
        defence.seen_by("surrogate")


@pytest.mark.parametrize("rule", ["bare", "defended", "straight-through", "exact"])
def test_seen_by_with_several_draws_is_the_mean_over_draws_of_that_rule(rule):
    defence = soap.Defence(tiny_model(), lambda x: x + 0.1 * torch.randn_like(x))
    seen = defence.seen_by(rule, draws=3, seed=5)
    assert (type(seen), seen.draws, seen.seed) == (MeanOverDraws, 3, 5)
    assert type(seen.model) is type(defence.seen_by(rule))


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
