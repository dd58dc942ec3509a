"""Joint training: reproducible, resumable at any step, and the files it writes."""

import dataclasses
import functools
import json
import math

import pytest
import torch
from tiny import TASKS, noise_images, state_of, tiny_model

import soap
from soap import recipes
from soap._files import tensor_files
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.models import Network
from soap.training import Progress, Schedule, checkpoint, train

SCHEDULE = Schedule(epochs=3, lr=0.05, batch_size=8, milestones=(0.5,), warmup_epochs=0.5, augment=("flip",))


def images(n: int = 34) -> Dataset:
    """Return random images; the class is the brightest quarter."""
    x = noise_images(n, seed=5)
    quarters = torch.stack([q.mean((1, 2, 3)) for half in x.chunk(2, 2) for q in half.chunk(2, 3)], 1)
    return Dataset(name="quarters", split="train", x=x, y=quarters.argmax(1), classes=tuple("abcd"), sha256="0" * 64)


class StopAfter:
    """Stop condition that is true after so many steps, like Ctrl-C."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def weights(model: JointModel) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("task", TASKS)
def test_same_seed_gives_the_same_weights(task, tmp_path):
    runs = []
    for number in range(2):
        model = tiny_model(task)
        train(model, images(), SCHEDULE, out=tmp_path / str(number))
        runs.append(weights(model))
    assert runs[0] == runs[1]
    other = tiny_model(task)
    train(other, images(), dataclasses.replace(SCHEDULE, seed=1), out=tmp_path / "other")
    assert weights(other) != runs[0]


@pytest.mark.parametrize("attack", [None, soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2, start="random")])
def test_run_stopped_at_any_step_resumes_to_the_same_weights(attack, tmp_path):
    whole = tiny_model()
    full = train(whole, images(), SCHEDULE, out=tmp_path / "whole", attack=attack)
    assert full.finished
    assert full.step == 12
    for steps in range(1, 12):
        out = tmp_path / str(steps)
        first = train(tiny_model(), images(), SCHEDULE, out=out, attack=attack, stop=StopAfter(steps))
        assert not first.finished
        resumed = tiny_model(seed=9)
        done = train(resumed, images(), SCHEDULE, out=out, attack=attack, resume=True)
        assert done.finished
        assert weights(resumed) == weights(whole), f"stopped after {steps} steps"
        rows = [[{**row, "images_per_second": 0} for row in run.history] for run in (full, done)]
        assert rows[0] == rows[1]
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 3


def test_training_learns_both_tasks(tmp_path):
    model = tiny_model()
    done = train(model, images(400), dataclasses.replace(SCHEDULE, epochs=30, holdout=100, augment=()), out=tmp_path)
    first, last = done.history[0], done.history[-1]
    assert last["auxiliary"] < first["auxiliary"]
    assert last["classification"] < first["classification"]
    assert last["holdout"] > 0.5


def test_weights_file_holds_the_model_and_its_metadata(tmp_path):
    model = tiny_model()
    train(model, images(), SCHEDULE, out=tmp_path, metadata={"recipe": "text"})
    tensors, metadata = tensor_files.load_tensors(tmp_path / "last.safetensors")
    assert {name: value.numpy().tobytes() for name, value in tensors.items()} == weights(model)
    assert metadata == {"recipe": "text", "data": "0" * 64, "epoch": "3", "weights": "last"}
    history = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    best = min(history, key=lambda row: row["classification"] + 10.0 * row["auxiliary"])
    assert tensor_files.load_tensors(tmp_path / "best.safetensors")[1]["epoch"] == str(best["epoch"])


def test_best_epoch_is_chosen_on_the_holdout(tmp_path):
    done = train(tiny_model(), images(100), dataclasses.replace(SCHEDULE, holdout=30, epochs=6), out=tmp_path)
    accuracies = [row["holdout"] for row in done.history]
    assert tensor_files.load_tensors(tmp_path / "best.safetensors")[1]["epoch"] == str(
        accuracies.index(max(accuracies)) + 1
    )


def test_adversarial_training_uses_the_attacked_images(tmp_path):
    seen = []

    class Blank:
        def perturb(self, model, x, y):
            assert not model.training
            seen.append(len(x))
            return torch.zeros_like(x)

    blank, plain = tiny_model(), tiny_model()
    train(blank, images(), SCHEDULE, out=tmp_path / "a", attack=Blank())
    train(plain, dataclasses.replace(images(), x=torch.zeros(34, 1, 8, 8)), SCHEDULE, out=tmp_path / "b")
    assert seen == [8] * 12
    assert weights(blank) == weights(plain)


def test_network_without_a_task_trains_on_classification_only(tmp_path):
    source = tiny_model()
    parts = Network(encoder=source.encoder, classifier=source.classifier, inputs=(1, 8, 8), features=(16,), classes=4)
    done = train(JointModel(parts), images(), SCHEDULE, out=tmp_path)
    assert all(row["auxiliary"] == 0 for row in done.history)
    assert done.history[-1]["classification"] < done.history[0]["classification"]


def test_global_random_state_is_unchanged(tmp_path):
    before = torch.get_rng_state()
    train(tiny_model(), images(), SCHEDULE, out=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_reports_epoch_step_and_speed(tmp_path):
    seen: list[Progress] = []
    train(tiny_model(), images(), SCHEDULE, out=tmp_path, watch=seen.append)
    assert [(p.epoch, p.step) for p in seen] == [(1, 4), (2, 8), (3, 12)]
    assert seen[-1].seconds_left == 0
    assert seen[0].images_per_second > 0


def test_bf16_is_refused_on_the_cpu(tmp_path):
    with pytest.raises(soap.InputError, match="'bf16' is for GPUs"):
        train(tiny_model(), images(), SCHEDULE, out=tmp_path / "out", precision="bf16")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore")  # torch.compile's own, on some versions
def test_compiled_training_gives_the_same_losses(tmp_path, monkeypatch):
    """Uses the backend that needs no C++ compiler; the default backend is tested on the GPU."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    eager = train(tiny_model(), images(), SCHEDULE, out=tmp_path / "eager").history
    compiled = train(tiny_model(), images(), SCHEDULE, out=tmp_path / "compiled", compiled=True).history
    for a, b in zip(eager, compiled, strict=True):
        assert a["classification"] == pytest.approx(b["classification"], rel=0.2)


def test_checkpoints_are_written_at_intervals_on_stop_and_at_the_end(tmp_path, monkeypatch):
    saved = []
    keep = tensor_files.save_tensors
    monkeypatch.setattr(tensor_files, "save_tensors", lambda path, *rest: (saved.append(path.name), keep(path, *rest)))
    train(tiny_model(), images(), SCHEDULE, out=tmp_path / "short")
    assert saved == ["last.safetensors", "best.safetensors", "checkpoint.safetensors"]
    saved.clear()
    train(tiny_model(), images(), SCHEDULE, out=tmp_path / "stopped", stop=StopAfter(6))
    assert saved == ["best.safetensors", "checkpoint.safetensors"]
    saved.clear()
    monkeypatch.setattr("soap.training.loop.SAVE_INTERVAL_S", -1.0)
    train(tiny_model(), images(), SCHEDULE, out=tmp_path / "long")
    assert saved.count("checkpoint.safetensors") == SCHEDULE.epochs


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attack", [soap.attacks.FGSM(eps=0.1), soap.attacks.PGD(eps=0.1, step_size=0.05, steps=2)])
def test_adversarial_training_runs_as_cuda_graph(attack, precision, tmp_path):
    """The attack once created an unused random generator, which breaks CUDA graph recording."""
    model = tiny_model()
    model.recordable = True
    schedule = dataclasses.replace(SCHEDULE, epochs=4)
    gpu = torch.device("cuda")
    assert train(model, images(), schedule, out=tmp_path, attack=attack, device=gpu, precision=precision).finished


@pytest.mark.gpu
@pytest.mark.parametrize("recordable", [False, True])
def test_training_runs_on_the_gpu(tmp_path, recordable):
    model = tiny_model()
    model.recordable = recordable
    done = train(model, images(), SCHEDULE, out=tmp_path, device=torch.device("cuda"), precision="bf16")
    assert done.finished
    assert {(parameter.dtype, parameter.is_cuda) for parameter in model.parameters()} == {(torch.float32, True)}
    assert math.isfinite(done.history[-1]["classification"])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_channels_last_network_resumes(device, tmp_path):
    """Momentum was once restored in a different memory layout, which the fused optimiser refuses."""
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y, names = torch.arange(16) % 10, tuple("abcdefghij")
    data = Dataset(name="noise", split="train", x=x, y=y, classes=names, sha256="0" * 64)
    recipe = recipes.read("cifar10-resnet18-no-def")
    go = functools.partial(train, data=data, schedule=SCHEDULE, out=tmp_path, device=torch.device(device))
    go(recipes.build(recipe), stop=StopAfter(2))
    again = recipes.build(recipe).to(device)
    optimiser = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    tensors, metadata = tensor_files.load_tensors(tmp_path / checkpoint.NAME)
    checkpoint.restore(tmp_path, again, optimiser, identity=json.loads(metadata["state"])["identity"])
    assert any(not parameter.is_contiguous() for parameter in again.parameters())
    for name, parameter in again.named_parameters():
        momentum = optimiser.state[parameter]["momentum_buffer"]
        assert momentum.stride() == parameter.stride()
        assert torch.equal(momentum.cpu(), tensors[f"momentum.{name}"])
    assert go(again, resume=True).finished


def test_checkpoints_of_older_versions_call_the_batch_size_batch(tmp_path):
    train(
        tiny_model(),
        images(),
        SCHEDULE,
        out=tmp_path,
        stop=StopAfter(2),
        metadata={"recipe": "[training]\nbatch_size = 8"},
    )
    tensors, metadata = tensor_files.load_tensors(tmp_path / checkpoint.NAME)
    state = metadata["state"].replace("batch_size", "batch")
    assert state != metadata["state"]
    tensor_files.save_tensors(tmp_path / checkpoint.NAME, tensors, {"state": state})
    done = train(
        tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True, metadata={"recipe": "[training]\nbatch_size = 8"}
    )
    assert done.finished


def test_checkpoint_of_another_run_is_refused(tmp_path):
    train(tiny_model(), images(), SCHEDULE, out=tmp_path, stop=StopAfter(2))
    other = dataclasses.replace(SCHEDULE, lr=0.1)
    with pytest.raises(soap.InputError, match="belongs to another run: schedule differ"):
        train(tiny_model(), images(), other, out=tmp_path, resume=True)
    with pytest.raises(soap.InputError, match="attack differ"):
        train(tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True, attack=soap.attacks.FGSM(eps=0.1))


def test_missing_and_corrupt_checkpoints_are_file_errors(tmp_path):
    with pytest.raises(soap.FileError, match=r"checkpoint\.safetensors: no such file"):
        train(tiny_model(), images(), SCHEDULE, out=tmp_path / "nowhere", resume=True)
    train(tiny_model(), images(), SCHEDULE, out=tmp_path, stop=StopAfter(2))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(soap.FileError, match="not a complete safetensors file"):
        train(tiny_model(), images(), SCHEDULE, out=tmp_path, resume=True)


def test_diverging_training_raises_with_advice(tmp_path):
    with pytest.raises(soap.SoapError, match="Lower lr or raise warmup_epochs"):
        train(tiny_model(), images(), Schedule(epochs=3, lr=1e30, batch_size=8), out=tmp_path)


def test_folder_that_is_a_file_is_a_file_error_and_the_file_stays(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(soap.FileError, match="taken"):
        train(tiny_model(), images(), SCHEDULE, out=taken)
    assert taken.read_text() == "mine"


def test_data_that_does_not_fit_the_model_is_refused_before_training(tmp_path):
    model = tiny_model()
    before = state_of(model)
    small = dataclasses.replace(images(), x=noise_images(34, side=6))
    with pytest.raises(soap.InputError, match=r"this model takes \[batch, 1, 8, 8\]"):
        train(model, small, SCHEDULE, out=tmp_path / "out")
    many = dataclasses.replace(images(), y=torch.arange(34) % 8, classes=tuple("abcdefgh"))
    with pytest.raises(soap.InputError, match=r"labels span 0\.\.7"):
        train(model, many, SCHEDULE, out=tmp_path / "out")
    with pytest.raises(soap.InputError, match="holdout is 34"):
        train(model, images(), dataclasses.replace(SCHEDULE, holdout=34), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert state_of(model) == before
