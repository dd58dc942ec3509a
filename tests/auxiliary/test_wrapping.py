"""`wrap`: features found or given, heads that fit, and an unchanged user module."""

import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_networks import images, own_network
from tiny import state_of
from torch import nn

import soap
from soap import InputError
from soap.auxiliary import Consistency, Purification, wrap
from soap.auxiliary.wrapping import last_linear

SETTINGS = Purification(step_size=0.1, steps=3, grid=(0.0, 0.1, 0.2))


@pytest.mark.parametrize("task", ["consistency", "rotation", "reconstruction"])
def test_wrapped_module_is_unchanged_and_gives_the_same_logits(task):
    network = own_network()
    network.conv.weight.requires_grad_(False)
    network.norm.eval()  # frozen statistics, while the rest trains
    before = state_of(network)
    model = wrap(network, task, shape=(1, 8, 8))
    assert state_of(network) == before
    assert not network.last._forward_pre_hooks
    model.eval()
    x = images(5, 1, 8, 8)
    assert torch.equal(model(x), network(x))
    assert not network.last._forward_pre_hooks


def test_features_are_the_input_of_the_last_called_linear_layer():
    network = own_network().eval()
    model = wrap(network, "reconstruction", shape=(1, 8, 8))
    x = images(5, 1, 8, 8)
    assert torch.equal(model.encoder(x), network.features(x))
    assert last_linear(network, x) is network.last


def test_weights_are_shared_and_saved_once():
    network = own_network()
    model = wrap(network, "rotation", shape=(1, 8, 8))
    own = [name for name in model.state_dict() if not name.startswith("task.")]
    assert own == [f"encoder.network.{name}" for name in network.state_dict()]
    with torch.no_grad():
        network.last.bias.fill_(7.0)
    assert torch.equal(dict(model.named_parameters())["encoder.network.last.bias"], network.last.bias)
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        network.last.bias.fill_(0.0)
    x = images(3, 1, 8, 8)
    assert torch.allclose(twin(x) - model.eval()(x), torch.tensor(7.0))  # the copy has its own weights


def test_features_of_concurrent_threads_do_not_mix():
    model = wrap(own_network().eval(), "reconstruction", shape=(1, 8, 8))
    parts = [images(2 + k, 1, 8, 8) for k in range(4)]
    wanted = [model.encoder(part) for part in parts]
    wrong: list[int] = []

    def ask(k: int) -> None:
        for _ in range(30):
            if not torch.equal(model.encoder(parts[k]), wanted[k]):
                wrong.append(k)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@settings(max_examples=15)
@given(
    channels=st.sampled_from([1, 2, 3]),
    height=st.integers(4, 19),
    width=st.integers(4, 19),
    classes=st.sampled_from([2, 3, 10, 1000]),
    task=st.sampled_from(["consistency", "rotation", "reconstruction"]),
)
def test_wrap_supports_any_size_channels_and_classes(channels, height, width, classes, task):
    width = height if task == "rotation" else width
    model = wrap(own_network(channels, classes), task, shape=(channels, height, width), purification=SETTINGS)
    assert model.classes == classes
    x = images(3, channels, height, width)
    out = soap.SOAP(model)(x)
    assert out.x.shape == x.shape
    assert (out.loss_after <= out.loss_before * (1 + 1e-5)).all()
    assert (out.x - x).abs().max() <= 0.2 + 1e-6
    assert torch.isfinite(model.auxiliary.losses(model, x, torch.tensor([0, 1, 1]), torch.Generator()).auxiliary)


def test_label_consistency_needs_no_linear_layer_and_no_training():
    with soap._runtime.isolation.preserved_random_state():
        torch.manual_seed(0)  # 3 of 300 untrained networks have no point with a lower loss in reach
        network = nn.Sequential(nn.Conv2d(1, 3, 5, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    out = soap.SOAP(wrap(network, shape=(1, 12, 12)))(images(4, 1, 12, 12))
    assert out.loss_after.mean() < out.loss_before.mean()


@pytest.mark.parametrize("shape", [(30,), (1, 64), (2, 5, 4, 3)])
def test_reconstruction_supports_inputs_that_are_not_images(shape):
    network = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 9), nn.ReLU(), nn.Linear(9, 2))
    model = wrap(network, "reconstruction", shape=shape)
    x = images(4, *shape)
    assert model.auxiliary.reconstruct(model, x).shape == x.shape
    assert soap.SOAP(model)(x).x.shape == x.shape


def test_wrap_uses_a_given_encoder_and_classifier():
    encoder = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(5 * 4 * 4, 3), nn.Tanh())
    for task in ("rotation", "reconstruction", "consistency"):
        model = wrap(classifier, task, shape=(3, 6, 6), encoder=encoder)
        assert model.encoder is encoder
        assert model.classifier is classifier
        assert soap.SOAP(model)(images(2, 3, 6, 6)).x.shape == (2, 3, 6, 6)


def test_head_depends_on_the_seed_and_a_given_head_is_used():
    one, two, other = (wrap(own_network(), "rotation", shape=(1, 8, 8), seed=seed).auxiliary for seed in (3, 3, 4))
    weights = [task.state_dict()["head.1.weight"] for task in (one, two, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    head = nn.Linear(12, 4)
    assert wrap(own_network(), "rotation", shape=(1, 8, 8), head=head).auxiliary.head is head


def test_dtype_and_settings_of_a_wrapped_model():
    model = wrap(own_network().double(), "reconstruction", shape=(1, 8, 8), alpha=3.0, noise=0.2, name="mine")
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert (model.alpha, model.auxiliary.noise, model.name) == (3.0, 0.2, "mine")
    assert model.purification.step_size == 0.1  # one channel: the paper's for MNIST
    assert wrap(own_network(3), shape=(3, 8, 8)).purification.step_size == pytest.approx(4 / 255)
    assert wrap(own_network(), shape=(1, 8, 8), purification=SETTINGS).purification is SETTINGS


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x.flatten(1)))


FLAT = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
AFTER = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh())
CONVS = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())


class Tempered(nn.Module):
    """Divides its logits by a temperature, initially 1."""

    def __init__(self):
        super().__init__()
        self.layer, self.temperature = nn.Linear(64, 4), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.layer(x.flatten(1)) / self.temperature


class InPlace(nn.Module):
    def forward(self, x):
        x -= 0.5
        return x


BAD = [
    ({"classifier": CONVS}, "calls no linear layer"),
    ({"classifier": Tempered()}, "are not the output of its last linear layer 'layer'"),
    ({"classifier": nn.Sequential(InPlace(), FLAT)}, "modifies its input in place; write x = x - mean"),
    ({"classifier": Twice()}, "calls its last linear layer 'layer' 2 times"),
    ({"classifier": AFTER}, "are not the output of its last linear layer '1'"),
    ({"classifier": AFTER, "shape": (1, 5, 5)}, "fails on a float32 tensor of shape"),
    ({"classifier": nn.Sequential(FLAT, nn.Softmax(1))}, "remove its last softmax"),
    ({"classifier": nn.Sequential(nn.Flatten(), nn.Linear(64, 1))}, "two for binary classification"),
    ({"classifier": nn.Conv2d(1, 4, 3), "task": "consistency"}, "expected float logits"),
    ({"classifier": nn.Linear(9, 4), "encoder": nn.Flatten()}, "the classifier fails on"),
    ({"task": "rotatoin"}, "did you mean rotation"),
    ({"task": "rotation", "shape": (1, 4, 16)}, "needs square images, got 4 x 16"),
    ({"task": "rotation", "shape": (64,)}, "use task='reconstruction'"),
    ({"task": "consistency", "shape": (1, 64)}, "use task='reconstruction'"),
    ({"task": "consistency", "head": nn.Identity()}, "leave out head"),
    ({"task": "rotation", "head": nn.Linear(64, 3)}, r"expected shape \[2, 4\]"),
    ({"task": "reconstruction", "head": nn.Linear(5, 64)}, "the head fails on"),
    ({"task": "reconstruction", "head": nn.Linear(64, 64)}, r"expected shape \[2, 1, 8, 8\]"),
    ({"task": Consistency(), "alpha": 2.0}, "leave out head, alpha and noise"),
    ({"alpha": -1.0}, "alpha is -1.0"),
    ({"noise": float("nan")}, "noise is nan"),
    ({"shape": ()}, r"e.g. shape=\(3, 32, 32\)"),
    ({"shape": (1, 0, 8)}, r"e.g. shape=\(3, 32, 32\)"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("changes", "words"), BAD, ids=[words for _, words in BAD])
def test_network_that_cannot_be_wrapped_raises(changes, words):
    given = {"classifier": FLAT, "task": "reconstruction", "shape": (1, 8, 8), **changes}
    before = state_of(given["classifier"])
    with pytest.raises(InputError, match=words):
        wrap(given.pop("classifier"), given.pop("task"), **given)
    if "classifier" in changes:
        assert state_of(changes["classifier"]) == before


@pytest.mark.gpu
def test_a_wrapped_model_moves_to_the_gpu_with_its_module():
    network = own_network()
    model = wrap(network, "reconstruction", shape=(1, 8, 8)).cuda().eval()
    x = images(3, 1, 8, 8).cuda()
    assert soap.SOAP(model)(x).x.is_cuda
    assert torch.equal(network(x), model(x))
