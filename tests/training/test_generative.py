"""Generative training: reproducible, resumable at any step bit for bit, and the files it writes."""

import dataclasses
import functools
import json
import math

import pytest
import torch
from test_training import StopAfter
from tiny import noise_images
from torch import nn

import soap
from soap._files import tensor_files
from soap._runtime.isolation import preserved_random_state
from soap.data import Dataset
from soap.models import Generator
from soap.training import GenerativeProgress, GenerativeSchedule, Objective, WganGp, checkpoint, train_generative

SCHEDULE = GenerativeSchedule(epochs=3, lr=1e-3, batch_size=16, warmup_steps=2, average=0.9, augment=("flip",))


def images(n: int = 35) -> Dataset:
    labels = torch.zeros(n, dtype=torch.int64)
    return Dataset(name="noise", split="train", x=noise_images(n), y=labels, classes=("a",), sha256="0" * 64)


def wgan(seed: int = 0, schedule: GenerativeSchedule = SCHEDULE) -> WganGp:
    with preserved_random_state():
        torch.manual_seed(seed)
        generator = Generator(latent=3, width=2, inputs=(1, 8, 8)).to(memory_format=torch.channels_last)
    return WganGp(generator, schedule, critic_steps=2)


class MeanImage:
    """A minimal objective: SGD moves one image to the mean image; dropout draws from the global state."""

    class Network(nn.Module):
        def __init__(self, start: float) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.full((1, 8, 8), float(start)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.image.expand_as(x), 0.1, self.training)

    def __init__(self, lr: float = 0.5, start: float = 0.0) -> None:
        self.networks = nn.ModuleDict({"model": self.Network(start)})
        self.optimisers = [torch.optim.SGD(self.networks.parameters(), lr=lr, momentum=0.5)]
        self.seen: list[float] = []

    def step(self, x: torch.Tensor, generator: torch.Generator, progress: float) -> dict[str, torch.Tensor]:
        self.seen.append(progress)
        self.optimisers[0].zero_grad()
        error = (self.networks["model"](x) - x).square().flatten(1).sum(1).mean()
        error.backward()
        self.optimisers[0].step()
        return {"error": error}

    def product(self) -> nn.Module:
        return self.networks["model"].eval()


def weights(objective: Objective) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in objective.networks.state_dict().items()}


def without_speed(history: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{**row, "images_per_second": 0} for row in history]


@pytest.mark.parametrize("make", [wgan, lambda seed=0: MeanImage(start=seed)], ids=["wgan", "mean image"])
def test_run_stopped_at_any_step_resumes_to_the_same_weights(make, tmp_path):
    whole = make()
    full = train_generative(whole, images(), SCHEDULE, out=tmp_path / "whole")
    assert full.finished
    assert full.step == 6
    kept = tensor_files.load_tensors(tmp_path / "whole" / "last.safetensors")
    for steps in range(1, 6):
        out = tmp_path / str(steps)
        first = train_generative(make(), images(), SCHEDULE, out=out, stop=StopAfter(steps))
        assert not first.finished
        assert not (out / "last.safetensors").exists()
        resumed = make(seed=9)  # different weights: all must come from the checkpoint
        done = train_generative(resumed, images(), SCHEDULE, out=out, resume=True)
        assert done.finished
        assert weights(resumed) == weights(whole), f"stopped after {steps} steps"
        assert without_speed(done.history) == without_speed(full.history)
        tensors, metadata = tensor_files.load_tensors(out / "last.safetensors")
        assert metadata == kept[1]
        assert all(torch.equal(tensors[name], kept[0][name]) for name in kept[0])


def test_same_seed_gives_the_same_weights(tmp_path):
    runs = []
    for number, seed in enumerate((0, 0, 1)):
        schedule = dataclasses.replace(SCHEDULE, seed=seed)
        objective = wgan(schedule=schedule)
        train_generative(objective, images(), schedule, out=tmp_path / str(number))
        runs.append(weights(objective))
    assert runs[0] == runs[1] != runs[2]


def test_weights_file_holds_only_the_product_and_its_metadata(tmp_path):
    objective = wgan()
    done = train_generative(objective, images(), SCHEDULE, out=tmp_path, metadata={"recipe": "text"})
    tensors, metadata = tensor_files.load_tensors(tmp_path / "last.safetensors")
    product = objective.product().state_dict()
    assert tensors.keys() == product.keys()
    assert all(torch.equal(tensors[name], product[name]) for name in product)
    assert metadata == {"recipe": "text", "data": "0" * 64, "epoch": "3", "weights": "last"}
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == done.history
    assert [list(row) for row in rows] == [["epoch", "distance", "penalty", "images_per_second"]] * 3
    assert not any(network.training for network in objective.networks.modules())


def test_run_converges_to_the_mean_image_and_reports_errors(tmp_path):
    objective, data = MeanImage(lr=0.2), images(32)
    schedule = dataclasses.replace(SCHEDULE, epochs=25, augment=())
    done = train_generative(objective, data, schedule, out=tmp_path)
    assert (objective.product().image - data.x.mean(0)).abs().mean() < 0.1
    assert done.history[-1]["error"] < 0.7 * done.history[0]["error"]
    assert objective.seen == pytest.approx([k / 50 for k in range(50)])


def test_metrics_are_means_over_the_steps_of_an_epoch(tmp_path):
    class Counting(MeanImage):
        def step(self, x, generator, progress):
            super().step(x, generator, progress)
            return {"count": torch.tensor(float(len(self.seen)))}

    done = train_generative(Counting(), images(), SCHEDULE, out=tmp_path)
    assert [row["count"] for row in done.history] == [1.5, 3.5, 5.5]


def test_global_random_state_and_images_are_unchanged(tmp_path):
    before, data = torch.get_rng_state(), images()
    train_generative(wgan(), data, SCHEDULE, out=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(data.x, images().x)


def test_progress_reports_epoch_step_and_metrics(tmp_path):
    seen: list[GenerativeProgress] = []
    train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path, watch=seen.append)
    ends = [(p.epoch, p.epochs, p.step, p.steps) for p in seen if p.step % 2 == 0]  # a slow machine reports more often
    assert ends == [(1, 3, 2, 6), (2, 3, 4, 6), (3, 3, 6, 6)]
    assert seen[-1].seconds_left == 0
    assert list(seen[0].metrics) == ["error"]


def test_checkpoints_are_written_at_intervals_and_at_the_end(tmp_path, monkeypatch):
    saved = []
    keep = tensor_files.save_tensors
    monkeypatch.setattr(tensor_files, "save_tensors", lambda path, *rest: (saved.append(path.name), keep(path, *rest)))
    train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path / "short")
    assert saved == ["last.safetensors", "checkpoint.safetensors"]
    saved.clear()
    monkeypatch.setattr("soap.training.loop.SAVE_INTERVAL_S", -1.0)
    train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path / "long")
    assert saved.count("checkpoint.safetensors") == SCHEDULE.epochs


def test_adam_state_is_restored_in_the_layout_of_the_weights(tmp_path):
    train_generative(wgan(), images(), SCHEDULE, out=tmp_path, stop=StopAfter(3))
    tensors, metadata = tensor_files.load_tensors(tmp_path / checkpoint.NAME)
    again = wgan(seed=4)
    identity = json.loads(metadata["state"])["identity"]
    checkpoint.restore(tmp_path, again.networks, *again.optimisers, identity=identity)
    for name, parameter in again.networks.named_parameters():
        owners = [optimiser for optimiser in again.optimisers if parameter in optimiser.state]
        assert len(owners) == (not name.startswith("average."))
        for optimiser in owners:
            state = optimiser.state[parameter]
            assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
            assert state["exp_avg"].stride() == parameter.stride()
            assert all(torch.equal(state[slot], tensors[f"{slot}.{name}"]) for slot in state)
            assert state["step"].item() == (3 if name.startswith("generator.") else 6)


def test_checkpoint_of_another_run_is_refused(tmp_path):
    train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path, stop=StopAfter(2))
    with pytest.raises(soap.InputError, match="belongs to another run: schedule differ"):
        train_generative(MeanImage(), images(), dataclasses.replace(SCHEDULE, lr=0.1), out=tmp_path, resume=True)
    with pytest.raises(soap.InputError, match="belongs to another run: architecture, objective differ"):
        train_generative(wgan(), images(), SCHEDULE, out=tmp_path, resume=True)


def test_missing_and_corrupt_checkpoints_are_file_errors(tmp_path):
    with pytest.raises(soap.FileError, match=r"checkpoint\.safetensors: no such file"):
        train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path / "nowhere", resume=True)
    train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path, stop=StopAfter(2))
    path = tmp_path / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(soap.FileError, match="not a complete safetensors file"):
        train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path, resume=True)


def test_diverging_training_raises_with_advice(tmp_path):
    with pytest.raises(soap.SoapError, match="Lower lr or raise warmup_steps"):
        train_generative(MeanImage(lr=1e30), images(), SCHEDULE, out=tmp_path)


def test_unsupported_options_are_refused_before_any_work(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(soap.InputError, match="'bf16' is for GPUs"):
        train_generative(wgan(), images(), SCHEDULE, out=out, precision="bf16")
    with pytest.raises(soap.InputError, match="WganGp does not support"):
        train_generative(wgan(), images(), SCHEDULE, out=out, compiled=True)
    large = dataclasses.replace(images(), x=noise_images(35, side=12))
    with pytest.raises(soap.InputError, match=r"this model takes \[batch, 1, 8, 8\]"):
        train_generative(wgan(), large, SCHEDULE, out=out)
    assert not out.exists()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore")  # torch.compile's own, on some versions
def test_compiled_training_gives_the_same_errors(tmp_path, monkeypatch):
    """Uses the backend that needs no C++ compiler; the default backend is tested on the GPU."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    eager = train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path / "eager").history
    compiled = train_generative(MeanImage(), images(), SCHEDULE, out=tmp_path / "compiled", compiled=True).history
    assert [row["error"] for row in eager] == pytest.approx([row["error"] for row in compiled], rel=0.3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_runs_and_resumes_on_the_gpu(precision, tmp_path):
    gpu = torch.device("cuda")
    go = functools.partial(train_generative, data=images(), out=tmp_path, device=gpu, precision=precision)
    assert not go(wgan(), schedule=SCHEDULE, stop=StopAfter(3)).finished
    again = wgan(seed=3)
    done = go(again, schedule=SCHEDULE, resume=True)
    assert done.finished
    assert all(parameter.is_cuda for parameter in again.networks.parameters())
    assert math.isfinite(done.history[-1]["distance"] + done.history[-1]["penalty"])


BAD = [
    ({"epochs": 0}, "epochs is 0"),
    ({"lr": 0.0}, "lr is 0.0"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"augment": ("flop",)}, "augment is 'flop'"),
    ({"betas": (0.5, 1.0)}, "beta is 1.0"),
    ({"betas": (0.5,)}, r"betas is \(0.5,\)"),
    ({"average": -0.1}, "average is -0.1"),
    ({"warmup_steps": -1}, "warmup_steps is -1"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_schedule_raises(change, message):
    with pytest.raises(soap.InputError, match=message):
        dataclasses.replace(SCHEDULE, **change)
