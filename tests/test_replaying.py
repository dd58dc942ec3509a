"""Everything that a GPU replays, with stand-in recordings on the CPU that call the same function on static tensors.

This tests everything except the graphs: padding, parts, the selection of a recording, and that nothing is replayed
inside a recording.
"""

from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from tiny import TASKS, noise_images, tiny_model
from torch import nn

import soap
from soap._runtime import cuda_graphs
from soap.attacks import APGD
from soap.attacks.losses import cross_entropy
from soap.gradient_rules import MeanOverIterates, StartPoint, StraightThrough, Unrolled, logits_and_gradient
from soap.models.pixelcnn import PixelCNN


@dataclass
class Again:
    """A stand-in for a recording and for its CUDA graph."""

    function: object
    inputs: tuple
    outputs: tuple

    @property
    def graph(self):
        return self

    def replay(self):
        cuda_graphs._thread_state.recording = True  # a real graph calls no Python
        for static, value in zip(self.outputs, self.function(*self.inputs), strict=True):
            static.copy_(value)
        cuda_graphs._thread_state.recording = False


@dataclass
class Shelf:
    recordings: dict = field(default_factory=dict)
    memory: None = None


@pytest.fixture
def recorded(monkeypatch):
    """Stand-in recordings on the CPU; returns the batch sizes of the recordings made."""
    made = []

    def record(function, inputs, memory):
        static = tuple(tensor.clone() for tensor in inputs)
        outputs = tuple(tensor.clone() for tensor in function(*static))
        made.append(len(inputs[0]))
        return Again(function, static, outputs)

    def replays(owner, *inputs):
        return getattr(owner, "recordable", False) is True and not getattr(
            cuda_graphs._thread_state, "recording", False
        )

    monkeypatch.setattr(cuda_graphs, "_ModuleGraphs", Shelf)
    monkeypatch.setattr(cuda_graphs, "_record", record)
    monkeypatch.setattr(cuda_graphs, "is_replayable", replays)
    return made


def seen_models(model):
    purify, hedge = soap.SOAP(model), soap.purifiers.Hedge(model, steps=3)
    return {
        "classifier": model,
        "straight-through": StraightThrough(model, purify),
        "at the start": StartPoint(model, purify),
        "along the path": MeanOverIterates(model, purify),
        "unrolled": Unrolled(model, purify),
        "unrolled, wider": Unrolled(model, purify, scale=3.0),
        "unrolled, smooth": Unrolled(model, purify, smooth=True),
        "hedge along the path": MeanOverIterates(model, hedge),
        "hedge unrolled": Unrolled(model, hedge),
    }


def seen(model, x, y):
    """Logits, gradients and attacked images by every gradient rule; one model, so that wrong recordings would show."""
    attack = APGD(eps=0.3, steps=3, restarts=2, leave_when_fooled=True)
    found = {}
    for name, one in seen_models(model).items():
        logits, gradient = logits_and_gradient(one, x, partial(cross_entropy, y=y))
        found |= {(name, "logits"): logits, (name, "gradient"): gradient, (name, "attacked"): attack(one, x, y)}
    with torch.no_grad():
        found["defended", "logits"] = soap.Defence(model, soap.SOAP(model))(x)
    return found


@pytest.mark.parametrize("task", TASKS)
def test_replayed_logits_gradients_and_attacks_equal_called_ones(task, recorded, monkeypatch):
    model, x = tiny_model(task).double(), noise_images(11).double()
    y = model.eval()(x).argmax(1)
    model.recordable = True
    replayed = seen(model, x, y)
    assert {16} <= {*recorded} <= {1, 2, 4, 8, 16, 32, 64, 128}
    made = len(recorded)
    again = seen(model, x, y)
    assert len(recorded) == made  # no new recordings
    monkeypatch.setattr(cuda_graphs, "is_replayable", lambda owner, *inputs: False)
    called = seen(model, x, y)
    for place, wanted in called.items():
        torch.testing.assert_close(replayed[place], wanted, msg=lambda message, place=place: f"{place}: {message}")
        assert torch.equal(replayed[place], again[place]), place


def test_pixel_rows_share_one_recording_for_all_rows_and_sizes(recorded, monkeypatch):
    torch.manual_seed(0)
    prior = PixelCNN(inputs=(3, 4, 5), channels=6, blocks=2, mixtures=3).double()
    x = torch.rand(7, 3, 4, 5, dtype=torch.float64)
    replayed = [soap.purifiers.PixelDefend(prior)(images) for images in (x, x[:5], x.flip(0))]
    assert recorded == [8]
    monkeypatch.setattr(cuda_graphs, "is_replayable", lambda owner, *inputs: False)
    for images, got in zip((x, x[:5], x.flip(0)), replayed, strict=True):
        wanted = soap.purifiers.PixelDefend(prior)(images)
        assert torch.equal(got.x, wanted.x)
        torch.testing.assert_close(got.loss_after, wanted.loss_after)


def test_nothing_is_replayed_inside_a_recording(recorded):
    class Twice(nn.Module):
        recordable = True

        def outer(self, x):
            return cuda_graphs.replayed(self, "inner", self.inner, x)

        def inner(self, x):
            return (2 * x,)

    model, x = Twice(), torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(cuda_graphs.replayed(model, "outer", model.outer, x)[0], 2 * x)
    assert recorded == [4]
