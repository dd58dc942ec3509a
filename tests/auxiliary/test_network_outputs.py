"""Classifiers as people have them: outputs that are no tensors, and inputs that are normalised."""

from collections import namedtuple

import pytest
import torch
from own_networks import images, own_network
from torch import nn

import soap
from soap import InputError
from soap.auxiliary import restore, save, wrap
from soap.models import LogitsAdapter

MEAN, STD = (0.4,), (0.25,)
Output = namedtuple("Output", ["loss", "logits"])


class Returns(nn.Module):
    """A network whose output is made by a function of its logits; its inputs are normalised."""

    def __init__(self, form, channels=1):
        super().__init__()
        self.inner, self.form = own_network(channels), form

    def forward(self, x):
        return self.form(self.inner(x))


FORMS = {
    "tensor": lambda logits: logits,
    "dict": lambda logits: {"loss": None, "logits": logits},
    "tuple": lambda logits: (logits, "hidden states"),
    "object": lambda logits: Output(None, logits),
}


@pytest.mark.parametrize("task", ["consistency", "reconstruction"])
@pytest.mark.parametrize("form", FORMS)
def test_wrap_finds_the_logits_and_normalises(tmp_path, form, task):
    network, x = Returns(FORMS[form]).eval(), images(4, 1, 8, 8)
    expected = network.inner((x - MEAN[0]) / STD[0])
    model = wrap(network, task, shape=(1, 8, 8), mean=MEAN, std=STD).eval()
    assert torch.equal(model(x), expected)
    assert soap.Defence(model, soap.SOAP(model))(x).shape == expected.shape
    save(tmp_path / "model.safetensors", model)
    again = restore(tmp_path / "model.safetensors", Returns(FORMS[form]))
    assert torch.equal(again(x), expected)


def test_split_network_is_normalised_before_its_encoder():
    network, x = own_network().eval(), images(4, 1, 8, 8)
    split = nn.Module()
    split.forward = lambda x: network.features(x)
    model = wrap(network.last, "rotation", shape=(1, 8, 8), encoder=split, mean=0.4, std=0.25).eval()
    assert torch.allclose(model(x), network((x - 0.4) / 0.25))


def test_attack_on_the_adapter_and_the_error_without_it():
    network, x = Returns(FORMS["dict"]).eval(), images(4, 1, 8, 8)
    attack, y = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2), torch.zeros(4, dtype=torch.int64)
    assert torch.equal(attack(LogitsAdapter(network), x, y), attack(network.inner, x, y))
    with pytest.raises(InputError, match=r"returned dict .*soap\.models\.LogitsAdapter"):
        attack(network, x, y)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"std": 0.0}, "std is 0.0, expected positive numbers"),
        ({"mean": (0.5, float("nan"))}, "mean is .* expected finite numbers"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean has 3 numbers, .* expected 1 or 1, one for each channel"),
    ],
)
def test_wrong_mean_or_std_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        wrap(own_network(), shape=(1, 8, 8), **settings)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_vision_transformer_of_hugging_face_is_fitted_and_purified(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers, of the extra 'dev'")
    torch.manual_seed(0)
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**settings, image_size=8, patch_size=4, num_channels=3, num_labels=3)
    network, x = transformers.ViTForImageClassification(config).eval(), images(12, 3, 8, 8)
    mean, std = [0.5, 0.4, 0.3], [0.5, 0.5, 0.25]
    normalised = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.equal(wrap(network, shape=(3, 8, 8), mean=mean, std=std)(x), network(normalised).logits)
    model, y = wrap(network, "reconstruction", shape=(3, 8, 8), mean=mean, std=std), torch.arange(12) % 3
    soap.fit(model, x, y, out=tmp_path, epochs=1, batch_size=4)
    attack = soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)
    assert soap.Defence(model, soap.SOAP(model, eps=0.1))(attack(model, x, y)).shape == (12, 3)
    loaded = soap.load(tmp_path / "last.safetensors", module=lambda: transformers.ViTForImageClassification(config))
    assert torch.equal(loaded(x), model(x))


def test_network_of_timm_is_wrapped():
    timm = pytest.importorskip("timm", reason="needs timm, which needs torchvision")
    model = wrap(timm.create_model("resnet10t", num_classes=3), "rotation", shape=(3, 32, 32), mean=0.5, std=0.5).eval()
    assert model(images(2, 3, 32, 32)).shape == (2, 3)
