"""Run the attempts of a plan on every batch; each batch is written as soon as it is done.

Each protocol starts from all images that the defence classifies correctly when clean; each attempt of a protocol
attacks the images that survived the earlier ones. Attacked images are classified again by the whole defence and by the
bare classifier, so the result does not rely on what an attack reports.
"""

import time
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import torch

from soap._runtime import seeding
from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.defence import Defence
from soap.evaluation.plan import Attempt, PlannedRun
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.evaluation.summary import Mask, Summary, SummaryBuilder
from soap.evaluation.transfer import Watch
from soap.gradient_rules import with_finite_logits
from soap.shapes import Float, Tensor


def run_attempts(
    run: PlannedRun,
    folder: RunFolder,
    *,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary | None:
    """Make every attempt on all images; None after a stop, and the same call then resumes."""
    builder = SummaryBuilder(folder.begin(run.content), run.data)
    n, batch = len(run.data), run.batch
    with isolated(run.defence):
        for number in range(-(-n // batch)):
            if stop():
                return None
            done = folder.read_batch(None, number)
            if done is None:
                done = _clean_batch(run, number)
                folder.write_batch(None, number, done)
            builder.add(None, number, done)
            watch("clean images", min((number + 1) * batch, n), n)
    for index, attempt in enumerate(run.attempts):
        for number in range(-(-n // batch)):
            if stop():
                return None
            done = folder.read_batch(index, number)
            if done is None:
                seed = seeding.seed_for(run.seed, index, number)
                done = _attacked_batch(run, attempt, builder.survived(index), number, seed)
                folder.write_batch(index, number, done)
            builder.add(index, number, done)
            watch(f"{attempt.protocol}, {attempt.name}", min((number + 1) * batch, n), n)
    return builder.summary()


def predicted_labels(defence: Defence, x: Float[Tensor, "batch *shape"]) -> tuple[Tensor, Tensor]:
    """Labels that the defence predicts, and those of the classifier alone (-1 where it is unknown)."""
    with torch.no_grad():
        defended = defence.labels(x)
        classifier = defence.classifier
        bare = classifier(x).argmax(1) if classifier is not None else torch.full_like(defended, -1)
    return defended, bare


def seeded(attack: Attack, seed: int) -> Attack:
    """The attack with another seed, where it has one."""
    draws = any(field.name == "seed" for field in fields(attack))  # type: ignore[arg-type]
    return replace(attack, seed=seed % 2**31) if draws else attack  # type: ignore[type-var]


def _clean_batch(run: PlannedRun, number: int) -> AttackedBatch:
    rows = np.arange(number * run.batch, min((number + 1) * run.batch, len(run.data)))
    began = time.monotonic()
    labels = predicted_labels(run.defence, run.data.x[rows[0] : rows[-1] + 1])
    return _scored(rows, np.empty((0,), np.float32), labels, time.monotonic() - began)


def _attacked_batch(run: PlannedRun, attempt: Attempt, survived: Mask, number: int, seed: int) -> AttackedBatch:
    """The attempt on the images of the batch that survived so far."""
    data, first = run.data, number * run.batch
    rows = first + np.flatnonzero(survived[first : first + run.batch])
    if len(rows) == 0:
        none = torch.empty(0, dtype=torch.int64)
        return _scored(rows, np.empty((0, *data.x.shape[1:]), np.float32), (none, none), 0.0)
    model = run.defence.seen_by(attempt.rule, scale=attempt.scale)
    if model is None:
        raise RuntimeError(f"{attempt.name} needs the gradient rule {attempt.rule}, which the defence does not have")
    index = torch.from_numpy(rows).to(data.x.device)
    x, y = data.x[index], data.y[index]
    began = time.monotonic()
    x_adv = seeded(attempt.attack, seed)(with_finite_logits(model, x), x, y)
    with isolated(run.defence):
        labels = predicted_labels(run.defence, x_adv)
    return _scored(rows, x_adv.cpu().numpy(), labels, time.monotonic() - began)


def _scored(
    rows: npt.NDArray[np.int64], x: npt.NDArray[np.float32], labels: tuple[Tensor, Tensor], seconds: float
) -> AttackedBatch:
    defended, bare = (each.cpu().numpy() for each in labels)
    return AttackedBatch(rows=rows, x=x, defended=defended, bare=bare, seconds=seconds)
