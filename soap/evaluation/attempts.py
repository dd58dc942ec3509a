"""Run the attempts of a plan on every batch; each batch is written as soon as it is done.

Each protocol starts from all images that the defence classifies correctly when clean; each attempt of a protocol
attacks the images that survived the earlier ones; in the headline mode, the earlier ones of all protocols. Attacked
images are classified again by the whole defence and by the bare classifier, so the result does not rely on what an
attack reports.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace

import numpy as np
from torch import nn

from soap._runtime import distributed, seeding
from soap.attacks import Attack, AutoAttack
from soap.defence import Defence
from soap.evaluation.cascade import ORDER_FACT, learned_order
from soap.evaluation.labels import PredictedLabels, predicted_labels
from soap.evaluation.paired import Mask
from soap.evaluation.plan import PlannedRun
from soap.evaluation.protocols import Attempt
from soap.evaluation.run_folder import AttackedBatch, RunFolder
from soap.evaluation.summary import Summary
from soap.evaluation.summary_builder import SummaryBuilder, read_fitting_batch, read_summary
from soap.evaluation.transfer import Watch
from soap.gradient_rules import with_finite_logits
from soap.gradient_rules.known_points import KnownPoints
from soap.gradient_rules.random_draws import own_generators, seeded_draws
from soap.shapes import Tensor


def run_attempts(
    run: PlannedRun,
    folder: RunFolder,
    *,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary | None:
    """Make every attempt on all images, or on those of the run's shard; None after a stop, and the same call resumes.

    Several processes share the batches: each batch belongs to one of them for all attempts, because an attempt depends
    on earlier ones of the same batch only. They need a common folder and a `stop` that is the same in all of them.
    """
    builder = SummaryBuilder(folder.begin(run.content), run.data)
    if run.headline and not _learn_order(run, folder, stop):
        return None
    here, numbers = distributed.processes(), folder.batch_numbers()
    first, end = numbers.start * run.batch_size, min(numbers.stop * run.batch_size, len(run.data))
    for _, attempt, number in folder.batch_names():
        turn = (number - numbers.start) % here.world_size
        if turn == 0 and stop():  # once a round, so that all processes stop at the same place
            return None
        if turn != here.rank:
            continue
        _add_batch(run, folder, builder, attempt, number)
        planned = None if attempt is None else run.attempts[attempt]
        name = "clean images" if planned is None else f"{planned.protocol}, {planned.name}"
        watch(name, min((number + here.world_size) * run.batch_size, end) - first, end - first)
    if not here.is_distributed:
        return builder.summary()
    return None if stop() else read_summary(folder, run.data)  # `stop` waits for the batches of the other processes


def _learn_order(run: PlannedRun, folder: RunFolder, stop: Callable[[], bool]) -> bool:
    """Attack the first batch in the plan's order, and store the order for the others; False after a stop.

    The first process does it, and each shard for itself, so that the order is the same in all of them.
    """
    if folder.read_fact(ORDER_FACT) is not None:
        return True
    here, builder = distributed.processes(), SummaryBuilder(folder.plan(), run.data)
    for attempt in (None, *folder.plan()["cascade"]):
        if stop():  # in all processes, so none is ahead of the first
            return False
        if here.is_main:
            _add_batch(run, folder, builder, attempt, 0)
    if here.is_main:
        folder.write_fact(ORDER_FACT, {"attempts": learned_order(run.attempts, builder.broken)})
    here.barrier()
    return True


def _add_batch(run: PlannedRun, folder: RunFolder, builder: SummaryBuilder, attempt: int | None, number: int) -> None:
    """Add a batch of the folder to the results; make and write it where it is missing."""
    batch = read_fitting_batch(folder, run.data, attempt, number)
    if batch is None:
        batch = _new_batch(run, attempt, number, builder.wanted(attempt, number))
        folder.write_batch(attempt, number, batch)
    builder.add(attempt, number, batch)


def seeded(attack: Attack, seed: int) -> Attack:
    """The attack with another seed, where it has one."""
    has_seed = is_dataclass(attack) and any(field.name == "seed" for field in fields(attack))
    return replace(attack, seed=seed % 2**31) if has_seed else attack  # type: ignore[type-var]


def evaluation_seed(seed: int, attempt: int | None, number: int) -> tuple[int, ...]:
    """The seed of the draws that classify a batch of a random defence; attempt: None for clean images."""
    return seed, -1 if attempt is None else attempt, number


@contextmanager
def seeded_attack(defence: Defence, seed: int, *, random: bool) -> Iterator[None]:
    """Seed the draws that a random defence makes during an attack, so that the attack can be repeated."""
    if not random:
        yield
        return
    with seeded_draws(seed, own_generators(defence.model, defence.purifier)):
        yield


def _seen(run: PlannedRun, planned: Attempt, x: Tensor) -> nn.Module:
    """The defence as an attempt sees it, with finite logits."""
    model = with_finite_logits(run.seen(planned), x)
    # On a GPU a pass costs less than the transfer of the points.
    repeats = isinstance(planned.attack, AutoAttack) and not run.random and x.device.type == "cpu"
    return KnownPoints(model) if repeats else model


def _new_batch(run: PlannedRun, attempt: int | None, number: int, wanted: Mask) -> AttackedBatch:
    """The attempt on the `wanted` images of a batch; attempt: None for clean images."""
    rows = np.flatnonzero(wanted)
    began = time.monotonic()
    x, y = run.data_at(rows)
    if attempt is not None and len(rows):
        planned, seed = run.attempts[attempt], seeding.seed_for(run.seed, attempt, number)
        with seeded_attack(run.defence, seed, random=run.random):
            x = seeded(planned.attack, seed)(_seen(run, planned, x), x, y)
    labels = PredictedLabels(defended=y, bare=y, drawn=y.new_empty((len(y), 0)))
    if len(rows):
        labels = predicted_labels(
            run.defence, x, draws=run.evaluation_draws, seed=evaluation_seed(run.seed, attempt, number)
        )
    return AttackedBatch(
        rows=rows,
        x=np.empty((0,), np.float32) if attempt is None else x.cpu().numpy(),
        defended=labels.defended.cpu().numpy(),
        bare=labels.bare.cpu().numpy(),
        drawn=labels.drawn.cpu().numpy(),
        seconds=time.monotonic() - began if len(rows) else 0.0,
    )
