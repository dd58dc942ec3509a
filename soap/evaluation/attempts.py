"""Run a suite: every attempt of every protocol on every batch, written as soon as it is done.

Each protocol meets all images that the defence classifies rightly when they are clean; inside a protocol an attempt
meets those that the ones before it left standing. What an attack claims is never believed: the images it returns are
scored again by the whole defence, and by the bare classifier beside it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from soap import validate
from soap._runtime import seeding
from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.data import Dataset
from soap.evaluation.adaptive.attackable import attackable
from soap.evaluation.adaptive.attempts import Attempt, Threat, left_out
from soap.evaluation.adaptive.folder import Attacked, RunFolder
from soap.evaluation.adaptive.target import Target
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import Watch
from soap.shapes import Tensor

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A protocol's result. standing: which images are still classified rightly, after all its attempts, [n].

    x: the last point of every image: what broke it, or what the last attempt that met it made of it; the clean image
    where none did. bare: what the classifier alone says of that point. after: the share of all images that stood when
    each of its attempts was done.
    """

    protocol: str
    standing: npt.NDArray[np.bool_]
    x: npt.NDArray[np.float32]
    bare: Labels
    after: dict[str, float]
    seconds: float


def run_attempts(
    target: Target,
    data: Dataset,
    threat: Threat,
    planned: Sequence[Attempt],
    *,
    suite: str,
    out: Path,
    batch: int = 250,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> RunFolder | None:
    """Make every attempt on all images of `data`; None when asked to stop, and the same call then goes on."""
    validate.at_least("batch", batch, 1)
    validate.inputs(data.x, target.bare)
    folder = RunFolder(out)
    folder.begin(plan(target, data, threat, planned, suite=suite, batch=batch, seed=seed))
    count = -(-len(data) // batch)
    standing = np.zeros(len(data), bool)
    with isolated(target.defended):
        for number in range(count):
            if stop():
                return None
            done = folder.batch(None, number)
            if done is None:
                done = _clean(target, data, number, batch)
                folder.keep(None, number, done)
            standing[done.rows] = done.defended == data.y.cpu().numpy()[done.rows]
            watch("clean images", min((number + 1) * batch, len(data)), len(data))
    alive = standing
    for index, attempt in enumerate(planned):
        if index == 0 or attempt.protocol != planned[index - 1].protocol:
            alive = standing.copy()
        for number in range(count):
            if stop():
                return None
            done = folder.batch(index, number)
            if done is None:
                done = _attacked(target, data, attempt, alive, number, batch, seeding.seed_for(seed, index, number))
                folder.keep(index, number, done)
            alive[done.rows] &= done.defended == data.y.cpu().numpy()[done.rows]
            watch(f"{attempt.protocol}, {attempt.name}", min((number + 1) * batch, len(data)), len(data))
    return folder


def plan(
    target: Target,
    data: Dataset,
    threat: Threat,
    planned: Sequence[Attempt],
    *,
    suite: str,
    batch: int,
    seed: int,
) -> dict[str, Any]:
    """All that the result depends on, as JSON; two runs of the same plan are the same run."""
    provenance = gather(target.defended, data, seed=seed, batch=batch)
    return {
        "target": {"name": target.name, "defence": target.label, "eps_pfy": target.eps_pfy},
        "threat": asdict(threat),
        "suite": suite,
        "data": {"name": data.name, "split": data.split, "n": len(data), "sha256": data.sha256},
        "classes": list(data.classes),
        "attempts": [{"protocol": one.protocol, "name": one.name, "settings": one.settings} for one in planned],
        "left_out": left_out(target, threat, planned, images=data.x.ndim == 4),
        "separable": target.bare is not None,
        "purifies": target.purifies,
        "batch": batch,
        "seed": seed,
        "weights_sha256": provenance.weights_sha256,
        "provenance": asdict(provenance),
    }


def outcomes(folder: RunFolder, data: Dataset) -> dict[str, Outcome]:
    """The results of every protocol whose batches are all there, from the folder alone."""
    content = folder.plan()
    batch, n = int(content["batch"]), len(data)
    y, count = data.y.cpu().numpy(), -(-n // batch)
    clean = [folder.batch(None, number) for number in range(count)]
    if any(part is None for part in clean):
        return {}
    standing, bare = np.zeros(n, bool), np.full(n, -1)
    for part in (part for part in clean if part is not None):
        standing[part.rows], bare[part.rows] = part.defended == y[part.rows], part.bare
    found: dict[str, Outcome] = {}
    by_protocol: dict[str, list[int]] = {}
    for index, one in enumerate(content["attempts"]):
        by_protocol.setdefault(one["protocol"], []).append(index)
    for protocol, indices in by_protocol.items():
        parts = {(index, number): folder.batch(index, number) for index in indices for number in range(count)}
        alive, x, said = standing.copy(), data.x.cpu().numpy().copy(), bare.copy()
        after, seconds = {}, 0.0
        for (index, _), batched in parts.items():
            if batched is None:
                break
            x[batched.rows], said[batched.rows] = batched.x, batched.bare
            alive[batched.rows] &= batched.defended == y[batched.rows]
            after[content["attempts"][index]["name"]] = float(alive.mean())
            seconds += batched.seconds
        else:
            found[protocol] = Outcome(protocol=protocol, standing=alive, x=x, bare=said, after=after, seconds=seconds)
    return found


def clean_labels(folder: RunFolder, n: int) -> tuple[Labels, Labels]:
    """What defence and classifier say of the images as they are, [n] each; -1 where not asked yet."""
    defended, bare = np.full(n, -1), np.full(n, -1)
    for number in range(-(-n // int(folder.plan()["batch"]))):
        part = folder.batch(None, number)
        if part is not None:
            defended[part.rows], bare[part.rows] = part.defended, part.bare
    return defended, bare


def _clean(target: Target, data: Dataset, number: int, batch: int) -> Attacked:
    rows = np.arange(number * batch, min((number + 1) * batch, len(data)))
    began = time.monotonic()
    defended, bare = target.answers(data.x[rows[0] : rows[-1] + 1])
    return _scored(rows, np.empty((0,), np.float32), defended, bare, time.monotonic() - began)


def _attacked(
    target: Target,
    data: Dataset,
    attempt: Attempt,
    alive: npt.NDArray[np.bool_],
    number: int,
    batch: int,
    seed: int,
) -> Attacked:
    """The attempt on those of the batch that still stand."""
    rows = number * batch + np.flatnonzero(alive[number * batch : (number + 1) * batch])
    shape = (0, *data.x.shape[1:])
    if len(rows) == 0:
        none = torch.empty(0, dtype=torch.int64)
        return _scored(rows, np.empty(shape, np.float32), none, none, 0.0)
    model = target.sight(attempt.sight, attempt.scale)
    if model is None:
        raise RuntimeError(f"{attempt.name} was planned for a target that has no {attempt.sight}")
    index = torch.from_numpy(rows).to(data.x.device)
    x, y = data.x[index], data.y[index]
    began = time.monotonic()
    x_adv = seeded(attempt.attack, seed)(attackable(model, x), x, y)
    with isolated(target.defended):
        defended, bare = target.answers(x_adv)
    return _scored(rows, x_adv.cpu().numpy(), defended, bare, time.monotonic() - began)


def seeded(attack: Attack, seed: int) -> Attack:
    """The same attack with draws of its own, where it draws at all."""
    draws = any(field.name == "seed" for field in fields(attack))  # type: ignore[arg-type]
    return replace(attack, seed=seed % 2**31) if draws else attack  # type: ignore[type-var]


def _scored(
    rows: npt.NDArray[np.int64], x: npt.NDArray[np.float32], defended: Tensor, bare: Tensor, seconds: float
) -> Attacked:
    return Attacked(rows=rows, x=x, defended=defended.cpu().numpy(), bare=bare.cpu().numpy(), seconds=seconds)
