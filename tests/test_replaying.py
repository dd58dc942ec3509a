"""All that a GPU replays, with recordings that a CPU can make: the same function again on the recording's own tensors.

What is proved so is everything but the graphs: padding, parts, which recording serves whom, and that nothing is
replayed inside a recording.
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
    """What stands for a recording, and for its graph."""

    function: object
    inputs: tuple
    outputs: tuple

    @property
    def graph(self):
        return self

    def replay(self):
        cuda_graphs._here.recording = True  # a graph would not call anything
        for static, value in zip(self.outputs, self.function(*self.inputs), strict=True):
            static.copy_(value)
        cuda_graphs._here.recording = False


@dataclass
class Shelf:
    recordings: dict = field(default_factory=dict)
    memory: None = None


@pytest.fixture
def recorded(monkeypatch):
    """Recordings on the CPU; what comes back are the rows of every recording that was made."""
    made = []

    def record(function, inputs, memory):
        static = tuple(tensor.clone() for tensor in inputs)
        outputs = tuple(tensor.clone() for tensor in function(*static))
        made.append(len(inputs[0]))
        return Again(function, static, outputs)

    def replays(owner, *inputs):
        return getattr(owner, "recordable", False) is True and not getattr(cuda_graphs._here, "recording", False)

    monkeypatch.setattr(cuda_graphs, "_Shelf", Shelf)
    monkeypatch.setattr(cuda_graphs, "_record", record)
    monkeypatch.setattr(cuda_graphs, "replays", replays)
    return made


def seen_models(model):
    purify, hedge = soap.SOAP(model), soap.purifiers.Hedge(model, steps=3)
    return {
        "classifier": model,
        "bpda": StraightThrough(model, purify),
        "at the start": StartPoint(model, purify),
        "along the path": MeanOverIterates(model, purify),
        "unrolled": Unrolled(model, purify),
        "unrolled, wider": Unrolled(model, purify, scale=3.0),
        "unrolled, smooth": Unrolled(model, purify, smooth=True),
        "hedge along the path": MeanOverIterates(model, hedge),
        "hedge unrolled": Unrolled(model, hedge),
    }


def seen(model, x, y):
    """Looks, answers and attacked images, by every way to see the defence; one model, so that recordings could mix."""
    attack = APGD(eps=0.3, steps=3, restarts=2, leave_when_fooled=True)
    found = {}
    for name, one in seen_models(model).items():
        logits, gradient = logits_and_gradient(one, x, partial(cross_entropy, y=y))
        found |= {(name, "logits"): logits, (name, "gradient"): gradient, (name, "attacked"): attack(one, x, y)}
    with torch.no_grad():
        found["defended", "logits"] = soap.Defence(model, soap.SOAP(model))(x)
    return found


@pytest.mark.parametrize("task", TASKS)
def test_looks_answers_and_attacks_are_those_that_are_called(task, recorded, monkeypatch):
    model, x = tiny_model(task).double(), noise_images(11).double()
    y = model.eval()(x).argmax(1)
    model.recordable = True
    replayed = seen(model, x, y)
    assert {16} <= {*recorded} <= {1, 2, 4, 8, 16, 32, 64, 128}
    made = len(recorded)
    again = seen(model, x, y)
    assert len(recorded) == made  # everything was there
    monkeypatch.setattr(cuda_graphs, "replays", lambda owner, *inputs: False)
    called = seen(model, x, y)
    for place, wanted in called.items():
        torch.testing.assert_close(replayed[place], wanted, msg=lambda told, place=place: f"{place}: {told}")
        assert torch.equal(replayed[place], again[place]), place


def test_a_row_of_pixels_is_one_recording_for_all_rows_and_sizes(recorded, monkeypatch):
    torch.manual_seed(0)
    prior = PixelCNN(inputs=(3, 4, 5), channels=6, blocks=2, mixtures=3).double()
    x = torch.rand(7, 3, 4, 5, dtype=torch.float64)
    replayed = [soap.purifiers.PixelDefend(prior)(images) for images in (x, x[:5], x.flip(0))]
    assert recorded == [8]
    monkeypatch.setattr(cuda_graphs, "replays", lambda owner, *inputs: False)
    for images, got in zip((x, x[:5], x.flip(0)), replayed, strict=True):
        wanted = soap.purifiers.PixelDefend(prior)(images)
        assert torch.equal(got.x, wanted.x)
        torch.testing.assert_close(got.loss_after, wanted.loss_after)


def test_inside_a_recording_nothing_is_replayed(recorded):
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
