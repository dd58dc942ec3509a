"""Cases that must give the same results in one and in two processes.

`torchrun ... process_cases.py FOLDER` runs them in two processes; with `fail`, one of them fails. Every process writes
its results to FOLDER/seen-RANK.json and has its own folders, which show which process wrote which file.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from tiny import noise_images, tiny_model
from torch import nn

import soap
from soap import recipes
from soap._runtime import distributed
from soap.attacks import PGD, DeepFool
from soap.auxiliary import Consistency, JointModel, Rotation
from soap.data import Dataset
from soap.defence import Defence
from soap.errors import SoapError
from soap.evaluation import evaluate_transfer
from soap.models import Network
from soap.results import Store
from soap.specs import spec_of
from soap.training import GenerativeSchedule, Schedule, Trained, train, train_generative
from soap.training.joint_step import JointStep

STEPS = 20
BAD_STEP = 4
PLAIN = Schedule(epochs=4, lr=0.01, batch_size=20)
AUGMENTED = Schedule(epochs=4, lr=0.05, batch_size=20, augment=("crop", "flip"), holdout=5)
ATTACKS = {
    "random pgd": PGD(eps=0.1, step_size=0.02, steps=5, start="random"),
    "df": DeepFool(radius=0.5, candidates=4),
}
COUNTS = (23, 10, 1)  # batches of 5: an odd number, an even one, and fewer images than processes


def noise(n: int) -> Dataset:
    """Return noise with learnable labels."""
    x = noise_images(n, seed=5)
    y = (x.flatten(1).mean(1) * 400).long() % 4
    return Dataset(name="noise", split="train", x=x, y=y, classes=tuple("abcd"), sha256="0" * 64)


def plain_model(task: str | None) -> JointModel:
    """Return a small convolutional network without dropout and batch norm."""
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(384, 16), nn.Tanh())
    network = Network(encoder=encoder, classifier=nn.Linear(16, 4), inputs=(1, 8, 8), features=(16,), classes=4)
    tasks = {"rotation": lambda: Rotation(nn.Linear(16, 4)), "consistency": Consistency}
    return JointModel(network, None if task is None else tasks[task]())


def trainings() -> dict[str, Callable[[Path], Trained]]:
    """Return every kind of joint training, 20 steps each."""
    digits = soap.data.load("mnist-mini", "train").take(100)
    pgd = PGD(eps=0.1, step_size=0.02, steps=5)
    fcn = recipes.build(recipes.find("mnist-fcn-dr"))
    return {
        "reconstruction": lambda out: train(fcn, digits, PLAIN, out=out),
        "rotation": lambda out: train(plain_model("rotation"), noise(105), AUGMENTED, out=out),
        "consistency": lambda out: train(plain_model("consistency"), noise(105), AUGMENTED, out=out),
        "adversarial": lambda out: train(plain_model(None), noise(100), PLAIN, out=out, attack=pgd),
    }


@contextmanager
def losses_seen() -> Iterator[list[list[float]]]:
    """Record classification loss, auxiliary loss and accuracy of every step."""
    seen: list[list[float]] = []
    step = JointStep.__call__

    def watched(self: JointStep, *given: Any, **options: Any) -> None:
        before = self.sums.clone()
        step(self, *given, **options)
        seen.append((self.sums - before).tolist())

    with patch.object(JointStep, "__call__", watched):
        yield seen


def bytes_of(path: Path) -> str:
    """Return a hash of the tensors of a file."""
    tensors, _ = soap._files.tensor_files.load_tensors(path)
    return hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in sorted(tensors.items()))).hexdigest()


def batch_norm(out: Path) -> dict[str, Any]:
    """Return the batch-norm statistics after one step."""
    parts = tiny_model(seed=3)
    network = Network(encoder=parts.encoder, classifier=parts.classifier, inputs=(1, 8, 8), features=(16,), classes=4)
    train(JointModel(network), noise(20), Schedule(epochs=1, lr=0.01, batch_size=20), out=out)
    norm = network.encoder[1]
    return {"mean": norm.running_mean.tolist(), "var": norm.running_var.tolist(), "seen": int(norm.num_batches_tracked)}


class Interruption:
    """Stop condition that is true in one process only, after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0 and distributed.processes().rank == distributed.processes().world_size - 1


def stopped_and_resumed(out: Path) -> dict[str, Any]:
    """Train with dropout and batch norm: stopped by one process and resumed, and uninterrupted."""
    schedule = Schedule(epochs=4, lr=0.05, batch_size=8, augment=("flip",))
    first = train(tiny_model(), noise(34), schedule, out=out / "shared", stop=Interruption(7))
    wrong = tiny_model(seed=9 + distributed.processes().rank)  # the checkpoint replaces these weights
    train(wrong, noise(34), schedule, out=out / "shared", resume=True)
    train(
        tiny_model(seed=distributed.processes().rank),
        noise(34),
        schedule,
        out=out / f"of-{distributed.processes().rank}",
    )
    ends = {"resumed": out / "shared", "whole": out / "of-0"}
    distributed.processes().barrier()  # until the main process has written
    return {"step": first.step, **{name: bytes_of(place / "checkpoint.safetensors") for name, place in ends.items()}}


class Poison:
    """An attack that returns NaN in the last process at one step."""

    calls = 0

    def perturb(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the images or NaN."""
        self.calls += 1
        here = distributed.processes()
        return x * (math.nan if self.calls == BAD_STEP and here.rank == here.world_size - 1 else 1.0)


class Mean:
    """A generative objective that is never called."""

    networks = nn.ParameterDict({"image": nn.Parameter(torch.zeros(1, 8, 8))})
    optimisers = ()

    def step(self, x: torch.Tensor, generator: torch.Generator, progress: float) -> dict[str, torch.Tensor]:
        """Not reached."""
        raise AssertionError

    def product(self) -> nn.Module:
        """Return the network."""
        return self.networks


def refused_runs(out: Path) -> dict[str, str]:
    """Return the errors of runs that must fail."""
    uneven, plan = Schedule(epochs=1, lr=0.05, batch_size=7), Schedule(epochs=4, lr=0.05, batch_size=8)
    cases: dict[str, Callable[[], object]] = {
        "nan": lambda: train(plain_model(None), noise(20), plan, out=out / "nan", attack=Poison()),
        "another world": lambda: resume_another(out.parent / "single"),
    }
    if distributed.processes().is_distributed:
        cases["uneven"] = lambda: train(tiny_model(), noise(20), uneven, out=out / "uneven")
        free = GenerativeSchedule(epochs=1, lr=0.1)
        cases["generative"] = lambda: train_generative(Mean(), noise(9), free, out=out / "free")
    errors = {}
    for name, case in cases.items():
        try:
            case()
            errors[name] = "nothing"
        except SoapError as error:
            errors[name] = str(error)
    return errors


def resume_another(place: Path) -> None:
    """Resume the run of `begin_alone`."""
    train(tiny_model(), noise(20), Schedule(epochs=4, lr=0.05, batch_size=8), out=place, resume=True)


def begin_alone(place: Path) -> None:
    """Run one process and stop after a step."""
    train(tiny_model(), noise(20), Schedule(epochs=4, lr=0.05, batch_size=8), out=place, stop=lambda: True)


def evaluations(out: Path) -> dict[str, Any]:
    """Return rows of the transfer protocol without times, measured and then read from the store."""
    found: dict[str, Any] = {}
    model = tiny_model()
    purifiers = [soap.SOAP(model, eps) for eps in ("min-aux", "min-aux-batch", "oracle", 0.1)]
    for n in COUNTS:
        data, store = noise(n), Store(out / f"{n}.jsonl")
        shown: set[tuple[int, int]] = set()
        rows = evaluate_transfer(
            model, data, ATTACKS, purifiers, store=store, batch_size=5, save_adversarial=out / f"images-{n}",
            watch=lambda what, done, total, shown=shown: shown.add((done, total)),
        )  # fmt: skip
        untouchable = {name: Untouchable(attack) for name, attack in ATTACKS.items()}
        again = evaluate_transfer(model, data, untouchable, purifiers, store=store, batch_size=5)
        measured, kept = ([timeless(row) for row in some] for some in (rows, again))
        found[str(n)] = {"rows": measured, "kept": measured == kept, "shown": max(shown)}
    stopped = evaluate_transfer(model, noise(23), ATTACKS, purifiers, batch_size=5, stop=Interruption(2))
    return {**found, "stopped": len(stopped)}


def suite_runs(folder: Path) -> dict[str, Any]:
    """Return results of suite runs in folders that all processes share: stopped by one and resumed, and a shard."""
    model, data = tiny_model(), noise(11)
    data.y.copy_(model(data.x).argmax(1))
    defence = Defence(model, soap.SOAP(model, 0.1))
    sizes: dict[str, Any] = {"suite": "quick", "eps": 0.02, "steps": 2, "queries": 5, "batch_size": 4}  # three batches
    stopped = soap.evaluate(defence, data, out=folder / "whole", stop=Interruption(3), **sizes)
    whole = soap.evaluate(defence, data, out=folder / "whole", note={"command": "this"}, **sizes)
    part = soap.evaluate(defence, data, shard=(1, 2), out=folder / "part", **sizes)
    try:
        soap.evaluate(defence, data, out=folder / "whole", seed=1, **sizes)
        error = "nothing"
    except SoapError as problem:
        error = str(problem)
    rows = [timeless(row) for row in whole.rows]
    return {
        "stopped": stopped is None,
        "rows": rows,
        "images": list(part.images),
        "error": "holds another run" in error,
    }


class Untouchable(soap.attacks.Attack):
    """An attack with the specification of another; calling it fails."""

    def __init__(self, like: soap.attacks.Attack) -> None:
        self.like = like

    def spec(self) -> Any:
        """Return the specification of the other attack."""
        return spec_of(self.like)

    def perturb(self, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Not reached."""
        raise AssertionError


def timeless(row: Any) -> dict[str, Any]:
    """Return a row without times and dates."""
    content = row.as_json()
    del content["seconds"], content["provenance"]["date"]
    return content


class Failure:
    """Raise in the last process after three steps."""

    steps = 0

    def __call__(self) -> bool:
        self.steps += 1
        if self.steps == 3 and distributed.processes().rank == distributed.processes().world_size - 1:
            raise ArithmeticError("the last process fails")
        return False


def one_fails(folder: Path) -> None:
    """Train with a failure in one process."""
    train(plain_model(None), noise(100), PLAIN, out=folder, stop=Failure())


def everything(folder: Path) -> dict[str, Any]:
    """Run all cases, in this process's own folder where possible."""
    own = folder / f"of-{distributed.processes().rank}"
    seen: dict[str, Any] = {"losses": {}}
    for name, go in trainings().items():
        with losses_seen() as seen["losses"][name]:
            go(own / name)
    seen["batch norm"] = batch_norm(own / "batch-norm")
    seen["resumed"] = stopped_and_resumed(folder)
    seen["errors"] = refused_runs(own)
    seen["evaluated"] = evaluations(own)
    seen["suite"] = suite_runs(folder / "suite")
    seen["files"] = sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.process_group(torch.device("cpu")) as group:
        place = Path(sys.argv[1])
        if sys.argv[2:] == ["fail"]:
            one_fails(place)
        content = {"world": group.world_size, **everything(place)}
        (place / f"seen-{group.rank}.json").write_text(json.dumps(content))
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (place / f"threads-{group.rank}.json").write_text(json.dumps(threads))
