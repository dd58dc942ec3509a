"""Small runs of all that may be killed: begun or gone on with by one call, and what their files say at the end."""

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
from soap.training import GenerativeSchedule, Schedule, checkpoint, generative, loop  # noqa: E402

EPOCHS = 10
TIMES = ("seconds", "date", "images_per_second", "checksum")  # the last is one of the others, too


@dataclass(frozen=True)
class Rehearsal:
    """go: begin the run in a folder, or go on with it, to its end. content: all its files say but for times.

    check: raise unless what a kill left behind is whole.
    """

    go: Callable[[Path], None]
    content: Callable[[Path], dict[str, Any]]
    check: Callable[[Path], None]


def images() -> Dataset:
    """Noise and labels for training."""
    x = noise_images(34, seed=5)
    return Dataset(name="noise", split="train", x=x, y=torch.arange(34) % 4, classes=tuple("abcd"), sha256="0" * 64)


def train(out: Path) -> None:
    """Joint training with dropout, batch norm, augmentation, held-out images; a checkpoint an epoch."""
    schedule = Schedule(epochs=EPOCHS, lr=0.05, batch=8, warmup_epochs=0.5, augment=("flip",), holdout=4)
    going = (out / checkpoint.NAME).exists()
    with patch.object(loop, "SAVE_EVERY", -1.0):
        loop.train(tiny_model(seed=9 if going else 0), images(), schedule, out=out, resume=going)


class MeanImage:
    """The simplest label-free objective: one image near all others, by Adam."""

    compilable = False

    def __init__(self) -> None:
        self.networks = nn.ParameterDict({"image": nn.Parameter(torch.zeros(1, 8, 8))})
        self.optimisers = [torch.optim.Adam(self.networks.parameters(), lr=0.01)]

    def step(self, x: torch.Tensor, generator: torch.Generator, progress: float) -> dict[str, torch.Tensor]:
        """Towards a noisy batch."""
        noise = torch.rand(x.shape, generator=generator)
        loss = (self.networks["image"] - x - 0.1 * noise).square().mean()
        self.optimisers[0].zero_grad()
        loss.backward()
        self.optimisers[0].step()
        return {"loss": loss}

    def product(self) -> nn.Module:
        """All there is."""
        return self.networks.eval()


def train_generative(out: Path) -> None:
    """Label-free training; a checkpoint an epoch."""
    going = (out / checkpoint.NAME).exists()
    schedule = GenerativeSchedule(epochs=EPOCHS, lr=0.01, batch=8)
    with patch.object(generative, "SAVE_EVERY", -1.0):
        generative.train_generative(MeanImage(), images(), schedule, out=out, resume=going)


def evaluate(out: Path) -> None:
    """Rows of the transfer protocol, one after the other."""
    model = tiny_model()
    attacks = {f"pgd-{n}": soap.attacks.PGD(eps=0.05, step_size=0.01, steps=n) for n in (5, 10, 15)}
    purifiers = [soap.SOAP(model, eps) for eps in ("min-aux", 0.1)]
    evaluate_transfer(model, suite_images(40), attacks, purifiers, store=Store(out / "rows.jsonl"), batch=10)


def trained(out: Path) -> dict[str, Any]:
    """Tensors and texts of a run's files."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob("*.safetensors")):
        tensors, metadata = tensor_files.load_tensors(path)
        state = _timeless(json.loads(metadata.pop("state", "{}")))
        numbers = {name: (str(value.dtype), value.numpy().tobytes()) for name, value in sorted(tensors.items())}
        found[path.name] = (numbers, metadata, state)
    found["metrics"] = _lines(out / "metrics.jsonl")
    found["others"] = sorted(path.name for path in out.iterdir() if path.suffix not in (".safetensors", ".jsonl"))
    return found


def training_is_whole(out: Path) -> None:
    """Every file that is there can be read, and a checkpoint that was there is there still."""
    for path in out.glob("*.safetensors"):
        tensor_files.load_tensors(path)
    _lines(out / "metrics.jsonl")
    if (out / checkpoint.PREVIOUS).exists() and not (out / checkpoint.NAME).exists():
        raise AssertionError(f"{out}: the checkpoint is gone")


def evaluated(out: Path) -> dict[str, Any]:
    """The rows of the store."""
    return {"rows": _lines(out / "rows.jsonl")}


def suite_is_whole(out: Path) -> None:
    """Every file that is there can be read."""
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
    return [_timeless(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in TIMES}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def difference(got: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The names of the files that say something else; empty where all say the same."""
    return ", ".join(sorted(name for name in {*got, *wanted} if got.get(name) != wanted.get(name)))


REHEARSALS = {
    "training": Rehearsal(train, trained, training_is_whole),
    "label-free training": Rehearsal(train_generative, trained, training_is_whole),
    "transfer evaluation": Rehearsal(evaluate, evaluated, lambda out: [*map(str, Store(out / "rows.jsonl").read())]),
    "adaptive suite": Rehearsal(lambda out: bool(run_suite(out)), suite_content, suite_is_whole),
}
