"""Small runs of everything that may be killed: each is started or resumed by one call and writes files to compare."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "evaluation" / "suite")]

import torch  # noqa: E402
from small_runs import content as suite_content  # noqa: E402
from small_runs import images as suite_images  # noqa: E402
from small_runs import run as run_suite  # noqa: E402
from tiny import noise_images, tiny_model  # noqa: E402
from torch import nn  # noqa: E402

import soap  # noqa: E402
from soap._files import tensor_files  # noqa: E402
from soap.data import Dataset  # noqa: E402
from soap.evaluation.transfer import evaluate_transfer  # noqa: E402
from soap.results import Store  # noqa: E402
from soap.training import GenerativeSchedule, Schedule, checkpoint, generative, joint, loop  # noqa: E402

EPOCHS = 10
TIMES = ("seconds", "date", "images_per_second", "checksum")  # the checksum covers the others


@dataclass(frozen=True)
class KillableRun:
    """start: run in a folder to the end, or resume there. content: what the files contain, without times.

    check: raise an error if the files that a kill left are not intact.
    """

    start: Callable[[Path], None]
    content: Callable[[Path], dict[str, Any]]
    check: Callable[[Path], None]


def images() -> Dataset:
    """Return noise images with labels for training."""
    x = noise_images(34, seed=5)
    return Dataset(name="noise", split="train", x=x, y=torch.arange(34) % 4, classes=tuple("abcd"), sha256="0" * 64)


def train(out: Path, **options: Any) -> None:
    """Train jointly with dropout, batch norm, augmentation and held-out images; one checkpoint per epoch."""
    schedule = Schedule(epochs=EPOCHS, lr=0.05, batch_size=8, warmup_epochs=0.5, augment=("flip",), holdout=4)
    resume = (out / checkpoint.NAME).exists()
    with patch.object(loop, "SAVE_INTERVAL_S", -1.0):
        joint.train(tiny_model(seed=9 if resume else 0), images(), schedule, out=out, resume=resume, **options)


class MeanImage:
    """The simplest label-free objective: one image close to all others, fitted by Adam."""

    compilable = False

    def __init__(self) -> None:
        self.networks = nn.ParameterDict({"image": nn.Parameter(torch.zeros(1, 8, 8))})
        self.optimisers = [torch.optim.Adam(self.networks.parameters(), lr=0.01)]

    def step(self, x: torch.Tensor, generator: torch.Generator, progress: float) -> dict[str, torch.Tensor]:
        """Take one step towards a noisy batch."""
        noise = torch.rand(x.shape, generator=generator)
        loss = (self.networks["image"] - x - 0.1 * noise).square().mean()
        self.optimisers[0].zero_grad()
        loss.backward()
        self.optimisers[0].step()
        return {"loss": loss}

    def product(self) -> nn.Module:
        """Return the trained networks."""
        return self.networks.eval()


def train_generative(out: Path) -> None:
    """Train without labels; one checkpoint per epoch."""
    resume = (out / checkpoint.NAME).exists()
    schedule = GenerativeSchedule(epochs=EPOCHS, lr=0.01, batch_size=8)
    with patch.object(loop, "SAVE_INTERVAL_S", -1.0):
        generative.train_generative(MeanImage(), images(), schedule, out=out, resume=resume)


def evaluate(out: Path) -> None:
    """Measure rows of the transfer protocol one after the other."""
    model = tiny_model()
    attacks = {f"pgd-{n}": soap.attacks.PGD(eps=0.05, step_size=0.01, steps=n) for n in (5, 10, 15)}
    purifiers = [soap.SOAP(model, eps) for eps in ("min-aux", 0.1)]
    evaluate_transfer(model, suite_images(40), attacks, purifiers, store=Store(out / "rows.jsonl"), batch_size=10)


def training_content(out: Path) -> dict[str, Any]:
    """Return the tensors and texts of the files of a training."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob("*.safetensors")):
        tensors, metadata = tensor_files.load_tensors(path)
        state = _without_times(json.loads(metadata.pop("state", "{}")))
        numbers = {name: (str(value.dtype), value.numpy().tobytes()) for name, value in sorted(tensors.items())}
        found[path.name] = (numbers, metadata, state)
    found["metrics"] = _lines(out / "metrics.jsonl")
    found["others"] = sorted(path.name for path in out.iterdir() if path.suffix not in (".safetensors", ".jsonl"))
    return found


def check_training(out: Path) -> None:
    """Check that every file can be read and that the checkpoint was not lost."""
    for path in out.glob("*.safetensors"):
        tensor_files.load_tensors(path)
    _lines(out / "metrics.jsonl")
    if (out / checkpoint.PREVIOUS).exists() and not (out / checkpoint.NAME).exists():
        raise AssertionError(f"{out}: the checkpoint is missing")


def evaluation_content(out: Path) -> dict[str, Any]:
    """Return the rows of the store."""
    return {"rows": _lines(out / "rows.jsonl")}


def check_suite(out: Path) -> None:
    """Check that every file of a suite run can be read."""
    folder = soap.evaluation.run_folder.RunFolder(out)
    if (out / "run.json").exists():
        folder.plan()
    for path in out.glob("*/**/*.npz"):
        attempt = None if path.parent.name == "clean" else int(path.parent.name)
        folder.read_batch(attempt, int(path.stem))
    for path in out.glob("facts/*.json"):
        folder.read_fact(path.stem)
    Store(folder.rows).read()


def _lines(path: Path) -> list[Any]:
    return [_without_times(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(part) for key, part in value.items() if key not in TIMES}
    return [_without_times(part) for part in value] if isinstance(value, list) else value


def difference(got: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return the names of the files that differ, joined; empty if all are equal."""
    return ", ".join(sorted(name for name in {*got, *wanted} if got.get(name) != wanted.get(name)))


RUNS = {
    "training": KillableRun(train, training_content, check_training),
    "label-free training": KillableRun(train_generative, training_content, check_training),
    "transfer evaluation": KillableRun(
        evaluate, evaluation_content, lambda out: [*map(str, Store(out / "rows.jsonl").read())]
    ),
    "adaptive suite": KillableRun(lambda out: bool(run_suite(out)), suite_content, check_suite),
}
