"""A NaN or infinite loss stops the run before its update and writes a file that reproduces it."""

import json
import math

import pytest
import torch
from test_training import SCHEDULE, StopAfter, images
from tiny import tiny_model

import soap
from soap._files import tensor_files
from soap._runtime import seeding
from soap.auxiliary import JointModel
from soap.models import Network
from soap.training import checkpoint, train
from soap.training.joint import NONFINITE_FILE
from soap.training.joint_step import JointStep, NonFiniteError

BAD_STEP = 6


class Poison:
    """An attack that fills the batch of one step, recognised by its first image, with `value`."""

    recordable = True  # so that the bad step is replayed from a CUDA graph

    def __init__(self, x: torch.Tensor, value: float) -> None:
        self.x, self.value = x, value

    def __repr__(self) -> str:
        return "Poison"

    def perturb(self, model, x, y):
        """Return the batch, or `value` everywhere."""
        return torch.where((x[:1] == self.x).all(), torch.full_like(x, self.value), x)


def plain_model() -> JointModel:
    """Return a classifier whose only randomness is in its initial weights."""
    parts = tiny_model(seed=3)
    network = Network(encoder=parts.encoder, classifier=parts.classifier, inputs=(1, 8, 8), features=(16,), classes=4)
    model = JointModel(network)
    model.recordable = True
    return model


def images_of(step: int) -> list[int]:
    """Return the images of a step in the order that the run draws."""
    generator = torch.Generator().manual_seed(seeding.seed_for(0, 0, step // 4))
    return torch.randperm(34, generator=generator).tolist()[step % 4 * 8 :][:8]


def go(model, out, device="cpu", **options):
    data, schedule = images(), soap.training.Schedule(epochs=3, lr=0.05, batch_size=8)
    poison = Poison(data.x[images_of(BAD_STEP)[0]].to(device), math.nan)
    return train(model, data, schedule, out=out, attack=poison, device=torch.device(device), **options)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_run_stops_before_the_update_and_saves_step_images_and_weights(tmp_path, device):
    model, good = plain_model(), plain_model()
    assert go(good, tmp_path / "good", device, stop=StopAfter(BAD_STEP)).step == BAD_STEP
    with pytest.raises(soap.SoapError, match=rf"the loss of step {BAD_STEP + 1} \(epoch 2, images {images_of(6)[0]}, "):
        go(model, tmp_path / "bad", device)
    # On a GPU the order of summation varies between runs.
    for name, value in good.named_parameters():
        torch.testing.assert_close(dict(model.named_parameters())[name], value, rtol=1e-4, atol=1e-6)
    tensors, metadata = tensor_files.load_tensors(tmp_path / "bad" / NONFINITE_FILE)
    state = json.loads(metadata["state"])
    assert (state["step"], state["epoch"], state["images"]) == (BAD_STEP, 2, images_of(BAD_STEP))
    assert state["seed"] == seeding.seed_for(0, 1, BAD_STEP)
    assert {name for name, _ in model.named_parameters()} <= {*tensors}
    for name, value in model.named_parameters():
        assert torch.equal(tensors[name], value.detach().cpu())
    assert not (tmp_path / "bad" / checkpoint.NAME).exists()


def test_written_file_reproduces_the_loss(tmp_path):
    with pytest.raises(soap.SoapError, match="stopped before the update"):
        go(plain_model(), tmp_path)
    tensors, metadata = tensor_files.load_tensors(tmp_path / NONFINITE_FILE)
    state, data, again = json.loads(metadata["state"]), images(), plain_model()
    again.load_state_dict(tensors, strict=False)
    poison = Poison(data.x[state["images"][0]], math.nan)
    schedule = soap.training.Schedule(epochs=3, lr=0.05, batch_size=8)
    step = JointStep(again.train(), data.x, data.y, schedule, attack=poison, precision="fp32", compiled=False)
    with pytest.raises(NonFiniteError):
        step(torch.tensor(state["images"]), seed=state["seed"], rate=0.05)
    assert step.skipped() == 1


def test_infinite_gradient_of_a_finite_loss_stops_the_run(tmp_path):
    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient * math.inf

    model = plain_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.encoder[4].register_forward_hook(lambda module, given, result: Steep.apply(result))
    with pytest.raises(soap.SoapError, match="the loss of step 1 "):
        train(model, images(), SCHEDULE, out=tmp_path)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_diverged_run_is_not_saved_when_stopped(tmp_path, device):
    with pytest.raises(soap.SoapError, match="the loss of step 7 "):
        go(plain_model(), tmp_path, device, stop=StopAfter(BAD_STEP + 1))
    assert not (tmp_path / checkpoint.NAME).exists()
