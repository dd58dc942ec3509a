"""Certified training, the running average of weights, and starting from bundled weights."""

import dataclasses

import pytest
import torch
from tiny import tiny_model

import soap
from soap.auxiliary import Binarity, JointModel, Purification
from soap.auxiliary.binarity import rounded, rounded_box
from soap.data import Dataset
from soap.errors import InputError
from soap.models import cnn, resnet18
from soap.models.interval_bounds import is_certified
from soap.training import CertifiedTraining, Schedule, train


def quarters(n: int, seed: int = 5) -> Dataset:
    """Return images with one bright quarter, which is the class; grey pixels at the border of the bright part."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=generator)
    x = 0.1 * torch.rand(n, 1, 8, 8, generator=generator)
    for image, label in zip(x, y.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[0, row : row + 4, column : column + 4] = 0.9
        image[0, row, column] = 0.45
    return Dataset(name="quarters", split="train", x=x, y=y, classes=tuple("abcd"), sha256="0" * 64)


def binary_model() -> JointModel:
    torch.manual_seed(0)
    steps = Purification(step_size=0.125, steps=5, grid=(0.5,))
    return JointModel(cnn(inputs=(1, 8, 8), classes=4), Binarity(), purification=steps, name="binary")


def test_trained_network_is_certified_on_new_images_and_survives_the_corners(tmp_path):
    model, test = binary_model(), quarters(64, seed=6)
    low, high = rounded_box(test.x, 0.3)
    assert not is_certified(model.eval(), low, high, test.y).any()
    schedule = Schedule(epochs=8, lr=0.05, batch_size=32)
    train(model, quarters(512), schedule, out=tmp_path, certified=CertifiedTraining(eps=0.3))
    certified = is_certified(model, low, high, test.y)
    assert certified.float().mean() > 0.9
    defence = soap.Defence(model, soap.SOAP(model))
    for corner in ((test.x - 0.3).clamp(0, 1), (test.x + 0.3).clamp(0, 1)):
        assert (defence.labels(corner) == test.y)[certified].all()
    assert torch.equal(soap.SOAP(model)(test.x).x, rounded(test.x))


def test_share_of_radius_and_weight_rises_from_zero_to_one():
    settings = CertifiedTraining(eps=0.3, warmup=0.1, ramp=0.5)
    assert [settings.share(at) for at in (0.0, 0.1, 0.35, 0.6, 0.9)] == pytest.approx([0, 0, 0.5, 1, 1])


def test_task_without_bounds_is_refused(tmp_path):
    with pytest.raises(InputError, match="Reconstruction"):
        train(
            tiny_model(), quarters(16), Schedule(epochs=1, lr=0.1), out=tmp_path, certified=CertifiedTraining(eps=0.1)
        )


def test_average_follows_the_weights_and_resumes_to_the_same_bits(tmp_path):
    schedule = Schedule(epochs=3, lr=0.05, batch_size=8, average=0.9)
    data = quarters(32)
    whole, resumed, plain = binary_model(), binary_model(), binary_model()
    train(whole, data, schedule, out=tmp_path / "whole")
    steps = iter(range(100))
    train(resumed, data, schedule, out=tmp_path / "part", stop=lambda: next(steps) >= 5)
    again = binary_model()
    train(again, data, schedule, out=tmp_path / "part", resume=True)
    train(plain, data, dataclasses.replace(schedule, average=0.0), out=tmp_path / "plain")
    states = [model.state_dict() for model in (whole, again, plain)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_mirrored_network_has_the_mean_logits_of_both_views_and_the_same_weights():
    torch.manual_seed(0)
    plain, mirrored = resnet18(), resnet18(mirrored=True)
    one, both = JointModel(plain).eval(), JointModel(mirrored).eval()
    both.load_state_dict(one.state_dict())
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(both(x), (one(x) + one(x.flip(-1))) / 2)


def test_recipe_starts_from_bundled_weights(tmp_path):
    recipe = soap.recipes.read("cifar10-resnet18-mirror-at")
    recipe = soap.recipes.revised(recipe, epochs=1)
    tiny = dataclasses.replace(
        recipe, training=dataclasses.replace(recipe.training, lr=1e-12, batch_size=4, average=0.0)
    )
    data = Dataset(
        name="noise", split="train", x=torch.rand(4, 3, 32, 32), y=torch.arange(4), classes=("a",) * 10, sha256="0" * 64
    )
    soap.recipes.make(tiny, data, out=tmp_path, device=torch.device("cpu"))
    trained, start = soap.load(tmp_path / "last.safetensors"), soap.load("cifar10-resnet18-pgd-at")
    torch.testing.assert_close(trained.classifier.weight, start.classifier.weight)
