"""Run folders with chosen content, for which the result of every check is known."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from soap.data import Dataset
from soap.data.dataset import make_dataset
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.specs import AttackStep

N, BATCH, EPS = 100, 60, 0.1

FACTS: dict[str, dict[str, Any]] = {
    "outputs": {"images": 20, "finite": True, "probabilities": False, "low": -3.0, "high": 4.0},
    "determinism": {"images": 20, "calls": 5, "difference": 0.0, "changed_labels": 0, "deterministic": True},
    "optimisation": {"purifier": True, "gradients": 5, "optimiser_steps": 0, "weights_changed": 0},
    "gradient": {"images": 20, "attacked": {"missing": 0, "not_finite": 0, "cross_entropy_zero": 0, "cut": False}},
    "differences": {"rule": "gradient", "whole": True, "precision": "float64", "images": 8, "images_with_gradient": 8,
                    "directions": 32, "error": 1e-9},
    "best-iterate": {"images": 20, "broken_on_the_way": 9, "broken_at_the_end": 9, "lost": 0, "doubtful": 0,
                     "attack": "APGD()"},
    "doubled-steps": {"attack": "APGD()", "images": 9, "broken": 0, "moved": 0.0},
    "doubled-restarts": {"attack": "APGD()", "images": 9, "broken": 0, "moved": 0.0},
    "unbounded": {"eps": 1.0, "images": 20, "standing": 0, "attacks": ["APGD()"]},
    "radii": {"eps": [0, 1, 2, 3, 4, 5, 6], "accuracy": [1, 0.9, 0.9, 0.5, 0.2, 0.1, 0.0], "images": 20, "attack": ""},
    "single-step": {"images": 20, "single": 0.6, "iterative": 0.4, "protocol": "iterates"},
    "cost": {"defended": {"forward": 17.0, "backward": 11.0, "seconds": 0.02},
             "bare": {"forward": 1.0, "backward": 0.0, "seconds": 0.001}, "images": 16, "separable": True},
    "planted": {"images": 20, "planted": 20, "broken": 19, "by_chance": 1, "attacks": ["APGD()"]},
    "repeat": {"images": 20, "different_images": 0, "different_decisions": 0, "batches": [20, 7], "moved": 0.0,
               "different_labels": 0, "labels": 20},
    "strongest-rule": {"strongest": "iterates", "exact": False, "purifies": True, "reason": "sign steps"},
    "eot": {"random": False},
}  # fmt: skip

LEFT: dict[str, int] = {
    "noise": 20, "transfer": 12, "straight-through": 9, "start": 12, "iterates": 8, "unrolled": 7, "autoattack": 9,
    "substitute": 18, "square": 11, "surrogate": 10, "decision": 12, "classifier": 20,
}  # fmt: skip
"""Images that survive each protocol: so many of every 20."""

LEFT_OUT = {"exact": "no exact gradient", "extra": "no attack given"}

PROVENANCE = {
    "weights_sha256": "a" * 64, "data_sha256": "", "images": "0..99 of test", "seed": 0, "batch_size": BATCH,
    "version": "0", "commit": "c" * 40, "torch": "2", "python": "3", "device": "cpu", "date": "2026-01-01",
    "training": None,
}  # fmt: skip


def images() -> Dataset:
    """Images of bytes, so that they are their own 8-bit rounding."""
    pixels = np.random.default_rng(0).integers(60, 200, (N, 1, 4, 4)).astype(np.uint8)
    return make_dataset("made-up", "test", pixels, np.zeros(N, np.int64), ("right", "wrong"))


def run(
    path: Path,
    *,
    facts: Mapping[str, Mapping[str, Any] | None] | None = None,
    left: Mapping[str, int] | None = None,
    bare_clean: int = 20,
    shift: float = EPS,
    norm: str = "linf",
    pixel: float | None = None,
    drop: Sequence[str] = (),
    **plan: Any,
) -> RunFolder:
    """A complete run that every check passes, except for what is given.

    facts: see `note`. left: surviving images by protocol, of every 20. bare_clean: of every 20 clean images, those that
    the classifier alone classifies correctly. shift: of attacked images. pixel: a value planted in one of them. drop:
    protocols whose images are missing. plan: entries of run.json.
    """
    data, folder = images(), RunFolder(path)
    left = LEFT if left is None else left
    content = {
        "target": {"name": "made-up", "defence": {"name": "SOAP", "settings": {}, "eps": "min-aux"}},
        "threat": {"eps": EPS, "norm": norm},
        "suite": "full",
        "data": {"name": data.name, "split": data.split, "n": N, "sha256": data.sha256},
        "classes": list(data.classes),
        "attempts": [{"protocol": name, "name": "apgd", "attack": asdict(AttackStep(name="APGD"))} for name in left],
        "left_out": LEFT_OUT,
        "separable": True,
        "purifies": True,
        "random": False,
        "exact": False,
        "gradient": "",
        "draws": 1,
        "batch_size": BATCH,
        "seed": 0,
        "provenance": {**PROVENANCE, "data_sha256": data.sha256},
    }
    folder.begin({**content, **plan})
    x = data.x.numpy()
    for number, start in enumerate(range(0, N, BATCH)):
        rows = np.arange(start, min(start + BATCH, N))
        empty = np.empty((0,), np.float32)
        folder.write_batch(None, number, attacked(rows, empty, np.zeros(len(rows), int), rows % 20 >= bare_clean))
        for index, (name, standing) in enumerate(left.items()):
            if name not in drop:
                moved = x[rows] + np.float32(shift)
                if pixel is not None:
                    moved[0, 0, 0, 0] = pixel
                folder.write_batch(index, number, attacked(rows, moved, rows % 20 >= standing, np.ones(len(rows))))
    note(folder, FACTS if facts is None else {name: facts.get(name, {}) for name in FACTS})
    return folder


def note(folder: RunFolder, facts: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Write the facts that are named, changed in part; None removes one."""
    for name, changed in facts.items():
        if changed is None:
            (folder.path / "facts" / f"{name}.json").unlink(missing_ok=True)
        else:
            folder.write_fact(name, {**FACTS[name], **changed})


def attacked(rows: Any, x: Any, defended: Any, bare: Any) -> AttackedBatch:
    """A batch in the types that files hold."""
    return AttackedBatch(
        rows=rows.astype(np.int64), x=x.astype(np.float32), defended=defended.astype(np.int64),
        bare=bare.astype(np.int64), seconds=1.0,
    )  # fmt: skip
