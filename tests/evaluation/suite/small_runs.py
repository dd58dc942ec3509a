"""Short suite runs on a tiny model, and changes of their files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from run_content import content as content
from tiny import noise_images, tiny_model

import soap
from soap.data import Dataset
from soap.data.dataset import make_dataset
from soap.defence import Defence
from soap.evaluation import SuiteReport, Threat
from soap.evaluation.run_folder import FINGERPRINTS, AttackedBatch, RunFolder, batch_fingerprint

THREAT = Threat(eps=0.02)
EFFORT = {"steps": 2, "queries": 5, "batch_size": 6}


def defence() -> Defence:
    model = tiny_model()
    return Defence(model, soap.SOAP(model, 0.1))


def images(n: int = 11) -> Dataset:
    """Noise that the defence classifies correctly, except every sixth image."""
    x = noise_images(n, seed=5)
    y = defence().labels(x)
    y[::6] = (y[::6] + 1) % 4
    return make_dataset("noise", "test", x.numpy(), y.numpy(), tuple("abcd"))


def run(
    out: Path, *, suite: str = "quick", stop: Callable[[], bool] = lambda: False, **changes: Any
) -> SuiteReport | None:
    given = {"eps": THREAT.eps, **EFFORT, **changes}
    return soap.evaluate(defence(), images(), suite=suite, out=out, stop=stop, **given)


def change_batch(
    out: Path, attempt: int | None, number: int, change: Callable[[AttackedBatch], dict[str, Any]]
) -> None:
    """Rewrite a batch with other arrays."""
    folder = RunFolder(out)
    batch = folder.read_batch(attempt, number)
    folder.write_batch(attempt, number, replace(batch, **change(batch)))


def forge_fingerprints(out: Path) -> None:
    """Write the fingerprints of the changed batches."""
    (out / FINGERPRINTS).unlink()
    folder = RunFolder(out)
    found = {name: folder.read_batch(attempt, number) for name, attempt, number in folder.batch_names()}
    folder.write_fingerprints({name: batch_fingerprint(batch) for name, batch in found.items()})


def change_json(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file, and remove its checksum."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    change(content)
    path.write_text(json.dumps(content))
