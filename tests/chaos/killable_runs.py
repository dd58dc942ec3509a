"""Small runs of everything that may be killed: each is started or resumed by one call and writes files to compare."""

import atexit
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "evaluation" / "suite")]

import torch  # noqa: E402
from counting import LONG  # noqa: E402
from small_runs import content as suite_content  # noqa: E402
from small_runs import images as suite_images  # noqa: E402
from small_runs import run  # noqa: E402
from tiny import noise_images, tiny_model  # noqa: E402
from torch import nn  # noqa: E402

import soap  # noqa: E402
from soap._files import tensor_files  # noqa: E402
from soap.data import Dataset, downloads  # noqa: E402
from soap.data.sources import SOURCES, DataFile  # noqa: E402
from soap.evaluation import merge_runs  # noqa: E402
from soap.evaluation.transfer import evaluate_transfer  # noqa: E402
from soap.results import Store  # noqa: E402
from soap.training import GenerativeSchedule, Schedule, checkpoint, generative, joint, loop  # noqa: E402

EPOCHS = 10
SHARDS = 2
SUITE = "quick" if LONG else "square"
"""In short runs a single attack: batches, facts and rows are saved in the same way for every attack."""

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


def run_suite(out: Path, **changes: Any) -> bool:
    """Start or resume a suite run."""
    return bool(run(out, suite=SUITE, **changes))


def attack_shard(out: Path) -> None:
    """Attack the shard of this process, whose number is $RANK as under a launcher, in its folder in `out`."""
    index = int(os.environ.get("RANK", "0"))
    run_suite(out / f"shard-{index}", shard=(index, SHARDS))


@functools.cache
def finished_shards() -> list[Path]:
    """Return the folders of all shards of a suite run; the process that makes them removes them at its end."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    for index in range(SHARDS):
        run_suite(folder / str(index), shard=(index, SHARDS))
    return [folder / str(index) for index in range(SHARDS)]


def merge_shards(out: Path) -> None:
    """Merge the shards of a suite run and make the checks and the rows of the whole run."""
    merge_runs(finished_shards(), out)
    run_suite(out)


@functools.cache
def published_files() -> tuple[Path, dict[str, Any]]:
    """Return a folder with data files, and the fields of a source of published data that contains them."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    made = []
    for number, name in enumerate(("first.bin", "second.bin")):
        content = bytes([number]) * 300_000
        (folder / name).write_bytes(content)
        made.append(DataFile(name, "test", len(content), hashlib.sha256(content).hexdigest()))
    return folder, {"folder": "imported", "files": tuple(made), "remotes": ()}


def import_data(out: Path) -> None:
    """Import two files of published data."""
    folder, fields = published_files()
    with patch.dict(SOURCES, {"published": replace(SOURCES["mnist"], **fields)}):
        downloads.import_files("published", folder, root=out)


def imported_content(out: Path) -> dict[str, Any]:
    """Return the bytes of the files that have been imported; temporary folders of killed processes do not count."""
    return {path.name: path.read_bytes() for path in (out / "imported").glob("*.bin")}


def check_imported(out: Path) -> None:
    """Check that every imported file is complete."""
    folder, _ = published_files()
    if wrong := [name for name, content in imported_content(out).items() if content != (folder / name).read_bytes()]:
        raise AssertionError(f"{out}: {', '.join(wrong)} has other content")


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


def merged_content(out: Path) -> dict[str, Any]:
    """Return the content of the run that the shards in `out` make together."""
    merged = out / "merged"
    if not merged.exists():
        merge_runs([out / f"shard-{index}" for index in range(SHARDS)], merged)
        run_suite(merged)
    return suite_content(merged)


def check_shards(out: Path) -> None:
    """Check that every file of the shards can be read."""
    for index in range(SHARDS):
        check_suite(out / f"shard-{index}")


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
    "adaptive suite": KillableRun(run_suite, suite_content, check_suite),
    "merge of two shards": KillableRun(merge_shards, suite_content, check_suite),
    "data import": KillableRun(import_data, imported_content, check_imported),
}
