"""A traced function equals the function, gradients included, for batches of any size."""

import pytest
import torch
from torch import nn

import soap
from soap._runtime.isolation import frozen
from soap.auxiliary import Consistency, JointModel
from soap.descent import loss_and_gradient
from soap.errors import InputError
from soap.models import Network
from soap.onnx_export.onnx_files import export_part
from soap.onnx_export.tracing import trace_batch


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def network(*layers, inputs=(2, 8, 8), classes=4):
    with soap._runtime.isolation.preserved_random_state():
        torch.manual_seed(0)
        made = [layer() for layer in layers]
        encoder = nn.Sequential(*made, nn.Flatten())
        features = encoder.eval()(torch.zeros(1, *inputs)).shape[1:]
        classifier = nn.Linear(features.numel(), classes)
    return Network(encoder=encoder, classifier=classifier, inputs=inputs, features=tuple(features), classes=classes)


LAYERS = {
    "strided convolution": [lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2), nn.GELU],
    "transposed convolution": [lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), nn.Tanh],
    "batch norm": [lambda: nn.Conv2d(2, 4, 3), lambda: nn.BatchNorm2d(4), nn.ReLU],
    "max pooling": [lambda: nn.Conv2d(2, 4, 3), lambda: nn.MaxPool2d(2)],
    "average pooling": [lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)],
    "global pooling": [lambda: nn.Conv2d(2, 4, 3), lambda: nn.AdaptiveAvgPool2d(1)],
    "channels last": [lambda: soap.models.Normalise([0.5] * 2, [0.2] * 2), lambda: nn.AdaptiveAvgPool2d(2)],
    "dropout": [lambda: nn.Conv2d(2, 4, 3), lambda: nn.Dropout(0.5), nn.Softplus],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_the_graph_of_a_step_computes_a_step(layers):
    model = JointModel(network(*layers), Consistency()).eval()
    step = export_part("step", model)
    with frozen(model):
        graph = trace_batch(step.function, step.examples)
        for rows in (1, 5):
            x0 = uniform(rows, 2, 8, 8)
            x = (x0 + 0.2 * uniform(rows, 2, 8, 8, seed=1)).clamp(0, 1)
            inputs = (x, x0, torch.tensor(0.1), torch.linspace(0.05, 0.2, rows))
            assert torch.allclose(graph(*inputs), step.function(*inputs), atol=1e-6)


def test_sizes_derived_from_the_batch_become_symbolic():
    def counts(x):
        doubled = torch.cat([x, x]).reshape(len(x), 2 * x.shape[1])
        return doubled, x.new_full((3 * len(x),), 2.0), torch.arange(len(x))

    graph = trace_batch(counts, (torch.zeros(3, 2),))
    for rows in (1, 4):
        x = uniform(rows, 2)
        assert all(torch.equal(got, want) for got, want in zip(graph(x), counts(x), strict=True))


def test_a_gradient_inside():
    graph = trace_batch(lambda x: loss_and_gradient(lambda point: point.pow(3).sum(1), x)[1], (torch.ones(3, 2),))
    x = uniform(4, 2)
    assert torch.allclose(graph(x), 3 * x**2)


def test_sizes_that_are_not_a_multiple_of_the_batch_are_refused():
    with pytest.raises(InputError, match="1 x batch \\+ 1"):
        trace_batch(lambda x: torch.cat([x, x[:1]]).reshape(len(x) + 1, 2) * 2, (torch.zeros(3, 2),))


def test_tensors_cached_by_a_model_are_real_after_tracing():
    """Label consistency caches the indices of its resize: they must not be fake tensors from tracing."""
    inputs = (1, 11, 11)  # a size that no other test has
    model = JointModel(network(lambda: nn.Conv2d(1, 2, 3), inputs=inputs), Consistency()).eval()
    step = export_part("step", model)
    with frozen(model):
        trace_batch(step.function, step.examples)
        losses, gradient = loss_and_gradient(lambda x: model.auxiliary.loss(model, x), uniform(2, *inputs))
    assert type(losses) is torch.Tensor
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0
