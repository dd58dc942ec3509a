"""Every kind of bundled model, exported and run by onnxruntime, against torch."""

import numpy as np
import pytest
import torch
from torch import nn

import soap
from soap.auxiliary import Consistency, JointModel
from soap.errors import InputError
from soap.models import Network
from soap.models.classifiers import Block
from soap.onnx_export import export, open_onnx

SLACK = 1e-4
"""Logits and losses differ in their last bits; some of them are as large as 100."""

FLIPS = 0.001
"""A gradient near zero may change its sign; the pixel then moves the other way."""

CASES = [
    ("cifar10-resnet18-rp", None, ("loss", "step")),
    ("cifar10-resnet18-lc", "paper", ("step",)),
    ("cifar10-resnet18-lc", "stop", ("whole",)),
]
"""Classifier, loss and step are in "whole"; tests/golden compares all parts of mnist-cnn-dr with torch."""

REPEATED = (4, 6, 8)
"""Blocks of a ResNet that repeat the operators of the block before; a part of the whole network takes 3 s and more."""


def images(model, rows, seed=0):
    return torch.rand(rows, *model.input_shape, generator=torch.Generator().manual_seed(seed))


def agrees(part, got, want):
    if part in ("x_next", "purified"):
        assert (got - want).abs().gt(1e-6).float().mean() <= FLIPS
    else:
        torch.testing.assert_close(got, want, atol=SLACK, rtol=SLACK)


def compare(model, files, purifier, rows):
    x0 = images(model, rows)
    x = (x0 + 0.02 * images(model, rows, seed=1)).clamp(0, 1)
    inputs = {"step": (x, x0, torch.tensor(0.03), torch.linspace(0.01, 0.05, rows))}
    for name in files.sessions:
        given = inputs.get(name, (x0,))
        with soap._runtime.isolation.frozen(model), torch.no_grad():
            want = by_torch(name, model, purifier, given)
        got = [torch.from_numpy(out) for out in files.run(name, *(one.numpy() for one in given))]
        for output, one, two in zip(files.manifest["parts"][name]["outputs"], got, want, strict=True):
            assert one.shape == two.shape, output
            agrees(output, one, two)


def by_torch(name, model, purifier, given):
    if name == "classifier":
        return (model(*given),)
    if name == "loss":
        return (model.auxiliary.loss(model, *given),)
    if name == "step":
        x, x0, step_size, eps = given
        _, gradient = soap.descent.loss_and_gradient(lambda point: model.auxiliary.loss(model, point), x)
        ball = soap.balls.Linf(eps)
        return (soap.descent.projected_step(x, gradient, origin=x0, ball=ball, step_size=-step_size.item()),)
    done = purifier(*given)
    return done.x, model(done.x), done.eps, done.loss_before, done.loss_after


@pytest.mark.parametrize(("name", "gradient", "parts"), CASES)
def test_every_part_equals_torch(name, gradient, parts, tmp_path):
    model = soap.load(name, gradient=gradient)
    for layer in REPEATED:
        assert isinstance(model.encoder[layer], Block)
        model.encoder[layer] = nn.Identity()
    made = export(model, tmp_path, parts=parts, eps=0.03, step_size=0.03, steps=1)
    files = open_onnx(tmp_path)
    assert set(files.sessions) == set(parts)
    for rows in (1, 4):
        compare(model, files, made.purifier, rows)


def test_the_choice_of_a_radius_is_in_the_graph(fcn, fcn_files, some):
    want = fcn_files.purifier(some)
    assert len(want.eps.unique()) > 2  # else the choice proves nothing
    got = open_onnx(fcn_files.folder).run("whole", some.numpy())
    purified, logits, eps, before, after = map(torch.from_numpy, got)
    assert torch.equal(eps, want.eps)
    agrees("purified", purified, want.x)
    for got, wanted in ((before, want.loss_before), (after, want.loss_after), (logits, fcn(want.x).detach())):
        torch.testing.assert_close(got, wanted, atol=SLACK, rtol=SLACK)


def test_all_parts_for_batches_of_any_size(fcn, fcn_files):
    files = open_onnx(fcn_files.folder)
    for rows in (1, 7):
        compare(fcn, files, fcn_files.purifier, rows)


def test_a_step_starts_at_x_and_stays_in_the_ball_around_x0(fcn_files):
    """If both were one tensor, the graph would have one input and lose the second."""
    x0 = np.full((2, 1, 28, 28), 0.5, np.float32)
    x = x0 + np.float32(0.2)
    step, eps = np.array(0.1, np.float32), np.array([0.3, 0.05], np.float32)
    (moved,) = open_onnx(fcn_files.folder).run("step", x, x0, step, eps)
    free = np.abs(moved[0] - x[0])
    assert ((np.abs(free - 0.1) < 1e-6) | (free < 1e-6)).all()  # one step from x, where the ball is wide
    assert free.max() > 0.09
    assert np.allclose(moved[1], 0.55, atol=1e-6)  # on the border of the ball around x0, where it is narrow


def test_a_user_network_is_exported(tmp_path):
    """Layers that no bundled model has: pooling of three kinds, a transposed convolution, groups."""
    with soap._runtime.isolation.preserved_random_state():
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1),
            nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        parts = {"encoder": encoder, "classifier": nn.Linear(16, 3)}
    network = Network(**parts, inputs=(2, 16, 16), features=(16,), classes=3)
    model = JointModel(network, Consistency(), name="own").eval()
    export(model, tmp_path, parts=["step"], eps=0.1, step_size=0.05, steps=1)
    for rows in (1, 5):
        compare(model, open_onnx(tmp_path), None, rows)


class SmallViT(nn.Module):
    """Patches, a class token, and an encoder whose evaluation mode would use torch's fused kernels."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.logits = nn.Linear(16, 5)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position
        tokens = tokens + nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.logits(self.encoder(tokens)[:, 0])


def test_a_transformer_is_exported(tmp_path):
    with soap._runtime.isolation.preserved_random_state():
        torch.manual_seed(0)
        model = soap.wrap(SmallViT().eval(), "consistency", shape=(3, 16, 16))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    made = export(model, tmp_path, parts=["classifier", "step"], eps=0.03, step_size=0.03, steps=2)
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
    for rows in (1, 5):
        compare(model, open_onnx(tmp_path), made.purifier, rows)


class Resampled(nn.Module):
    def forward(self, x):
        return torch.nn.functional.grid_sample(x, torch.zeros(len(x), 8, 8, 2), align_corners=False)


class Thresholded(nn.Module):
    def forward(self, x):
        return x * 2 if x.mean() > 0.5 else x


@pytest.mark.parametrize(
    ("layer", "part", "said"),
    [
        (Resampled(), "step", r"as step.onnx: .* encoder.1.0 uses aten.grid_sampler_2d_backward, .* replace it"),
        (Thresholded(), "classifier", r"as classifier.onnx: .* aten._local_scalar_dense, .* use torch.where"),
    ],
)
def test_the_operator_that_cannot_be_exported_is_named(layer, part, said, tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(layer), nn.Flatten(), nn.Linear(192, 5)).eval()
    with pytest.raises(InputError, match=said):
        export(soap.wrap(network, "consistency", shape=(3, 8, 8)), tmp_path, parts=[part])
    assert not list(tmp_path.iterdir())
