"""Short runs of the suite on a tiny model, and their files changed by hand."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tiny import noise_images, tiny_model

import soap
from soap.data import Dataset
from soap.data.dataset import dataset
from soap.evaluation.adaptive import Report, RunFolder, Target, Threat, evaluate
from soap.evaluation.adaptive.folder import Attacked
from soap.evaluation.adaptive.seal import SEAL, seal

THREAT = Threat(eps=0.02)
EFFORT = {"steps": 2, "queries": 5, "batch": 6}


def target() -> Target:
    model = tiny_model()
    return Target.of_model(model, soap.SOAP(model, 0.1))


def images(n: int = 11) -> Dataset:
    """Noise that the defence classifies rightly, but for every sixth."""
    x = noise_images(n, seed=5)
    y = target().defended(x).argmax(1)
    y[::6] = (y[::6] + 1) % 4
    return dataset("noise", "test", x.numpy(), y.numpy(), tuple("abcd"))


def run(out: Path, *, suite: str = "quick", stop: Callable[[], bool] = lambda: False, **changes: Any) -> Report | None:
    given = {"threat": THREAT, **EFFORT, **changes}
    return evaluate(target(), images(), suite=suite, out=out, stop=stop, **given)


def change_batch(out: Path, attempt: int | None, number: int, change: Callable[[Attacked], dict[str, Any]]) -> None:
    """Rewrite a batch with other arrays."""
    folder = RunFolder(out)
    batch = folder.batch(attempt, number)
    folder.keep(attempt, number, replace(batch, **change(batch)))


def seal_again(out: Path) -> None:
    """What a forger would do."""
    (out / SEAL).unlink()
    seal(RunFolder(out))


def change_json(path: Path, change: Callable[[Any], None]) -> None:
    """As a forger would: the checksum goes, too."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    change(content)
    path.write_text(json.dumps(content))


def content(out: Path) -> dict[str, Any]:
    """All that a run's files say, apart from when and how fast."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = path.relative_to(out).as_posix()
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                found[name] = {key: arrays[key].tobytes() for key in arrays.files if key != "seconds"}
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = _timeless(json.loads(path.read_text()))
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"[\d.]+ x the time", "", value)  # check 15 tells how much longer the defence takes
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in ("seconds", "date", "checksum")}
    return [_timeless(part) for part in value] if isinstance(value, list) else value
