"""A run folder from anywhere: its plan and its batches are checked before a report is made of them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from soap.data import Dataset
from soap.errors import FileError, InputError
from soap.evaluation.adaptive.folder import PLAN, Attacked, RunFolder
from soap.evaluation.adaptive.seal import batches
from soap.results import Provenance

_SHAPE: dict[str, Any] = {
    "target": {"name": str, "defence": str, "eps_pfy": str},
    "threat": {"eps": float, "norm": str},
    "data": {"name": str, "split": str, "n": int, "sha256": str},
    "suite": str,
    "classes": list,
    "left_out": dict,
    "separable": bool,
    "purifies": bool,
    "batch": int,
    "seed": int,
    "weights_sha256": str,
    "provenance": {field.name: object for field in fields(Provenance)},
}
"""What a plan holds, and of what type."""


def opened(out: Path) -> RunFolder:
    """The run in `out`, its plan whole."""
    folder = RunFolder(out)
    plan = folder.plan()
    attempts = plan.get("attempts")
    wrong = _misfit(plan, _SHAPE, "")
    if not wrong and not isinstance(attempts, list):
        wrong = "attempts"
    for number, one in enumerate(attempts if not wrong and isinstance(attempts, list) else []):
        wrong = wrong or _misfit(one, {"protocol": str, "name": str, "settings": str}, f"attempts[{number}].")
    if not wrong and (plan["batch"] < 1 or plan["data"]["n"] < 1):
        wrong = "batch" if plan["batch"] < 1 else "data.n"
    if not wrong and {*plan["provenance"]} != {*_SHAPE["provenance"]}:
        wrong = "provenance"
    if wrong:
        raise FileError(f"{out / PLAN}: its {wrong} is not what a run writes; run the suite again in another folder.")
    return folder


def fitting(out: Path, data: Dataset) -> RunFolder:
    """The run in `out`, when `data` is what it ran on and every batch fits it."""
    folder = opened(out)
    wanted = folder.plan()["data"]
    if wanted["sha256"] != data.sha256 or wanted["n"] != len(data):
        raise InputError(
            f"{out} is a run on {wanted['n']:,} images of {wanted['name']}/{wanted['split']} with fingerprint "
            f"{wanted['sha256'][:12]}, got {len(data):,} of {data.name}/{data.split} with {data.sha256[:12]}; "
            "name the data of the run."
        )
    for name, attempt, number in batches(folder):
        batch = folder.batch(attempt, number)
        if batch is None and attempt is None:
            raise FileError(f"{out}: {name} is missing, so there is nothing to report yet; repeat the run's command.")
        if batch is not None and not fits(batch, data, attacked=attempt is not None):
            raise FileError(f"{out}: the arrays of {name} do not fit the data; remove it and run the suite again.")
    return folder


def fits(batch: Attacked, data: Dataset, *, attacked: bool) -> bool:
    """Whether a batch's arrays fit the data and each other. attacked: whether it holds images, too."""
    rows, answers = batch.rows, (batch.defended, batch.bare)
    whole = rows.ndim == 1 and all(np.issubdtype(array.dtype, np.integer) for array in (rows, *answers))
    if not whole or any(array.shape != rows.shape for array in answers):
        return False
    if len(np.unique(rows)) != len(rows) or not ((rows >= 0) & (rows < len(data))).all():
        return False
    return not attacked or (batch.x.dtype == np.float32 and batch.x.shape == (len(rows), *data.x.shape[1:]))


def _misfit(content: object, shape: dict[str, Any], path: str) -> str:
    """The first entry that is missing or of another type; empty where all fit."""
    if not isinstance(content, dict):
        return path.removesuffix(".") or "content"
    for key, wanted in shape.items():
        value = content.get(key)
        if isinstance(wanted, dict):
            if wrong := _misfit(value, wanted, f"{path}{key}."):
                return wrong
        elif key not in content or not _is(value, wanted):
            return path + key
    return ""


def _is(value: object, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, wanted) and (wanted is not int or not isinstance(value, bool))
