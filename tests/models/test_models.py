"""The networks against the paper's Tables 6 and 7."""

import pytest
import torch
from torch import nn

import soap
from soap.models import ARCHITECTURES, Normalise, build, conv_decoder, dense_decoder

# Counted by hand from the printed tables, as read in REPRODUCTION: name -> parameters of f and g.
PARAMETERS = {
    "fcn": 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10,
    "cnn": (9 * 32 + 32) + (32 * 64 * 9 + 64) + 2 * 64 + (64 * 49 * 128 + 128) + 2 * 128 + (128 * 10 + 10),
    "resnet18": 175_258,
    "wide-resnet28": 36_489_290,
}


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_resnet_parameters_add_up_by_hand():
    def block(a: int, b: int) -> int:
        shortcut = a * b + 2 * b if a != b else 0
        return a * b * 9 + 2 * b + b * b * 9 + 2 * b + shortcut

    blocks = 2 * block(16, 16) + block(16, 32) + block(32, 32) + block(32, 64) + block(64, 64)
    assert PARAMETERS["resnet18"] == 3 * 16 * 9 + 2 * 16 + blocks + 64 * 10 + 10


def test_wide_resnet_parameters_add_up_by_hand():
    def block(a: int, b: int) -> int:
        shortcut = a * b + b if a != b else 0
        return 2 * a + (a * b * 9 + b) + 2 * b + (b * b * 9 + b) + shortcut

    total, before = 3 * 16 * 9 + 16, 16
    for width in (160, 320, 640):
        for _ in range(4):
            total, before = total + block(before, width), width
    assert PARAMETERS["wide-resnet28"] == total + 2 * 640 + 640 * 10 + 10


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shapes_and_parameter_counts(name):
    network = build(name)
    assert count(network.encoder, network.classifier) == PARAMETERS[name]
    x = torch.rand(2, *network.inputs)
    z = network.encoder.eval()(x)
    assert z.shape[1:] == network.features
    assert network.classifier.eval()(z).shape == (2, 10)


def kinds(module: nn.Module) -> list[str]:
    return [type(part).__name__ for part in module.modules() if not list(part.children())]


def test_fcn_and_cnn_have_the_layers_of_table_7():
    fcn = build("fcn")
    assert kinds(fcn.encoder) == ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout"]
    assert kinds(fcn.classifier) == ["Linear"]
    cnn = build("cnn")
    assert kinds(cnn.encoder) == ["GreyConv2d", "ReLU", "Conv2d", "ReLU", "Norm"]
    assert kinds(cnn.classifier) == ["Flatten", "Linear", "ReLU", "BatchNorm1d", "Linear"]


def test_wide_block_has_dropout_and_stride_on_the_second_convolution():
    blocks = [m for m in build("wide-resnet28", widen=1).encoder.modules() if type(m).__name__ == "WideBlock"]
    assert len(blocks) == 12
    strides = [[c.stride[0] for c in block.residual if isinstance(c, nn.Conv2d)] for block in blocks]
    assert strides == [[1, 1]] * 4 + [[1, 2]] + [[1, 1]] * 3 + [[1, 2]] + [[1, 1]] * 3
    assert all(m.p == 0.3 for block in blocks for m in block.modules() if isinstance(m, nn.Dropout))


def test_cifar_networks_normalise_in_their_first_layer():
    for name in ("resnet18", "wide-resnet28"):
        first = next(iter(build(name).encoder))
        assert isinstance(first, Normalise)
    x = torch.rand(2, 3, 4, 4)
    out = Normalise((0.1, 0.2, 0.3), (0.5, 1.0, 2.0))(x)
    torch.testing.assert_close(out[:, 2], (x[:, 2] - 0.3) / 2.0)


def test_decoders_return_images():
    assert dense_decoder((128,), (1, 28, 28))(torch.rand(2, 128)).shape == (2, 1, 28, 28)
    out = conv_decoder((64, 7, 7), (1, 28, 28))(100 * torch.randn(2, 64, 7, 7))
    assert out.shape == (2, 1, 28, 28)
    assert out.min() >= 0
    assert out.max() <= 1


def test_networks_accept_other_sizes_channels_and_classes():
    for name, shape in (("fcn", (3, 5, 7)), ("cnn", (3, 30, 22)), ("resnet18", (3, 48, 40))):
        network = build(name, inputs=shape, classes=3)
        z = network.encoder.eval()(torch.rand(2, *shape))
        assert z.shape[1:] == network.features
        assert network.classifier.eval()(z).shape == (2, 3)


def test_unknown_name_or_option_suggests_known_ones():
    with pytest.raises(soap.InputError, match="did you mean resnet18"):
        build("resnet-18")
    with pytest.raises(soap.InputError, match="dropuot"):
        build("fcn", dropuot=0.1)
