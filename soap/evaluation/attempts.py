"""Run the attempts of a plan on every batch; each batch is written as soon as it is done.

Each protocol starts from all images that the defence classifies correctly when clean; each attempt of a protocol
attacks the images that survived the earlier ones. Attacked images are classified again by the whole defence and by the
bare classifier, so the result does not rely on what an attack reports.
"""

import time
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import torch

from soap._runtime import seeding
from soap._runtime.isolation import isolated
from soap.attacks import Attack
from soap.defence import Defence
from soap.evaluation.plan import PlannedRun
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
    n = len(run.data)
    for _, attempt, number in folder.batch_names():
        if stop():
            return None
        batch = folder.read_batch(attempt, number)
        if batch is None:
            batch = _new_batch(run, attempt, number, builder.survived(attempt))
            folder.write_batch(attempt, number, batch)
        builder.add(attempt, number, batch)
        planned = None if attempt is None else run.attempts[attempt]
        name = "clean images" if planned is None else f"{planned.protocol}, {planned.name}"
        watch(name, min((number + 1) * run.batch, n), n)
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


def _new_batch(run: PlannedRun, attempt: int | None, number: int, wanted: Mask) -> AttackedBatch:
    """The attempt on those images of the batch that are `wanted`; attempt: None for clean images."""
    first = number * run.batch
    rows = first + np.flatnonzero(wanted[first : first + run.batch])
    began = time.monotonic()
    x, y = run.data_at(rows)
    if attempt is not None and len(rows):
        planned = run.attempts[attempt]
        attack = seeded(planned.attack, seeding.seed_for(run.seed, attempt, number))
        x = attack(with_finite_logits(planned.seen(run.defence), x), x, y)
    defended = bare = y
    if len(rows):
        with isolated(run.defence):
            defended, bare = predicted_labels(run.defence, x)
    return AttackedBatch(
        rows=rows,
        x=np.empty((0,), np.float32) if attempt is None else x.cpu().numpy(),
        defended=defended.cpu().numpy(),
        bare=bare.cpu().numpy(),
        seconds=time.monotonic() - began if len(rows) else 0.0,
    )
