"""A run's folder written by hand, with figures and names of our own choosing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from soap.data import Dataset
from soap.data.dataset import make_dataset
from soap.evaluation import SuiteReport, read_report
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.specs import AttackStep, DefenceSpec

N = 20
STANDING = {"transfer": 12, "straight-through": 5}
"""Images that stand against each protocol: the first so many. The classifier alone gets every second one right."""

RADII = {"eps": [0.0, 0.05, 0.1, 0.2, 1.0], "accuracy": [1.0, 0.75, 0.25, 0.1, 0.0], "images": 20, "attack": "APGD()"}
LOSSES = {"attack": "APGD(steps=2) on straight-through", "loss": [0.5, 1.25, 2.0], "standing": [1.0, 0.5, 0.25]}


def sample_images(channels: int = 3, side: int = 6, n: int = N, classes: Sequence[str] = ("cat", "dog")) -> Dataset:
    pixels = np.random.default_rng(0).integers(60, 200, (n, channels, side, side)).astype(np.uint8)
    return make_dataset("made-up", "test", pixels, np.zeros(n, np.int64), classes)


def sample_run(
    path: Path,
    data: Dataset,
    *,
    name: str = "some-model",
    facts: Mapping[str, Any] | None = None,
    standing: Mapping[str, int] = STANDING,
    purifies: bool = True,
) -> SuiteReport:
    """The report of a run by two protocols, all images in one batch."""
    folder, n = RunFolder(path), len(data)
    provenance = {
        "weights_sha256": "a1" * 32, "data_sha256": data.sha256, "images": f"0..{n - 1} of test", "seed": 0,
        "batch_size": n, "version": "9.8.7", "commit": "c0ffee", "torch": "2", "python": "3",
        "device": "cpu (2 threads)", "date": "2026-01-02T03:04:05+00:00", "training": None,
    }  # fmt: skip
    folder.begin(
        {
            "target": {
                "name": name,
                "defence": asdict(DefenceSpec(name=f"purifier of {name}", eps="min-aux")),
            },
            "threat": {"eps": 0.1, "norm": "linf"},
            "suite": "full",
            "data": {"name": data.name, "split": data.split, "n": n, "sha256": data.sha256},
            "classes": list(data.classes),
            "attempts": [
                {
                    "protocol": one,
                    "name": "apgd ce",
                    "attack": asdict(AttackStep(name="APGD", rule="bare" if one == "transfer" else one)),
                }
                for one in standing
            ],
            "left_out": {"unrolled": "not in this suite"},
            "separable": purifies,
            "purifies": purifies,
            "random": False,
            "exact": False,
            "gradient": "",
            "draws": 1,
            "batch_size": n,
            "seed": 0,
            "weights_sha256": "a1" * 32,
            "provenance": provenance,
        }
    )
    rows, right = np.arange(n), np.zeros(n, np.int64)
    bare = np.arange(n) % 2 if purifies else np.full(n, -1)
    folder.write_batch(
        None, 0, AttackedBatch(rows=rows, x=np.empty((0,), np.float32), defended=right, bare=bare, seconds=0.0)
    )
    x = (data.x.numpy() + np.float32(0.05)).astype(np.float32)
    for index, count in enumerate(standing.values()):
        said = (np.arange(n) >= count).astype(np.int64)
        folder.write_batch(index, 0, AttackedBatch(rows=rows, x=x, defended=said, bare=bare, seconds=1.5))
    for fact, found in ({"radii": RADII, "loss-curve": LOSSES} if facts is None else facts).items():
        folder.write_fact(fact, found)
    return read_report(path, data)
