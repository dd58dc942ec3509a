"""Run what the paper's cells want: train what is missing, evaluate, keep every row at once; stop and go on anywhere."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from soap.paper.planning import Evaluation, Job, Training, plan
from soap.paper.time_left import TimeLeft, about
from soap.paper.wanted import Wanted
from soap.paper.workshop import MissingError, Workshop
from soap.results import Ledger, Row, Store


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands: the job under way, what of it is being done, and how long all jobs will take."""

    job: Job
    number: int
    jobs: int
    what: str
    done: int
    total: int
    seconds_left: float

    def __str__(self) -> str:
        return f"{self.number}/{self.jobs} {self.job.title}; {about(self.seconds_left)} left"


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A job that could not be done, and why: what is missing and the command that fetches it."""

    job: Job
    reason: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a run did; `rows` are the new ones. `finished` is false when it was asked to stop before the end."""

    finished: bool
    jobs: int
    done: int
    skipped: tuple[Skipped, ...]
    rows: list[Row]


def run(
    wanted: Iterable[Wanted],
    *,
    rows: Iterable[Row],
    results: Path,
    runs: Path,
    device: torch.device,
    data_root: Path | None = None,
    batch: int = 500,
    precision: str = "fp32",
    compiled: bool = False,
    epochs: int | None = None,
    seeds: Sequence[int] = (0,),
    limit: Mapping[str, int] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Done:
    """Fill the cells that neither `rows` nor the store `results` fills yet, one job at a time.

    Weights are the bundled ones (seed 0), else `runs`/RECIPE[-seed-N]/last.safetensors, which are trained where they
    are missing; a training that was cut off goes on from its checkpoint. precision, compiled and epochs (so many at
    most; the rows tell) are for training alone: weights that are there are taken as they are. seeds, limit: see `plan`.
    Jobs whose data set is not at hand are skipped. stop: asked between batches and steps; what is done is kept, and
    the same call goes on.
    """
    store = Ledger(results, list(rows))
    before = {row.key for row in store.read()}
    workshop = Workshop(store, runs, device, data_root, batch, precision, compiled, stop)
    jobs = plan(wanted, store.read(), weights=workshop.weights, epochs=epochs, seeds=seeds, limit=limit)
    left = TimeLeft([(job.kind, job.work) for job in jobs], device=device.type, clock=clock)
    skipped: list[Skipped] = []
    done = 0

    def report(number: int, job: Job, what: str, part: int, total: int, own: float | None = None) -> None:
        seconds = left.seconds(own)
        watch(Progress(job=job, number=number, jobs=len(jobs), what=what, done=part, total=total, seconds_left=seconds))

    for number, job in enumerate(jobs, 1):
        if stop():
            break
        left.begin()
        show = partial(report, number, job)
        show(job.kind, 0, 1)
        try:
            whole = workshop.do(job, show)
        except MissingError as problem:
            skipped.append(Skipped(job=job, reason=str(problem)))
            left.end(counts=False)
            continue
        if not whole:
            break
        left.end()
        done += 1
    new = [row for row in Store(results).read() if row.key not in before]
    finished = done + len(skipped) == len(jobs)
    return Done(finished=finished, jobs=len(jobs), done=done, skipped=tuple(skipped), rows=new)


__all__ = ["Done", "Evaluation", "Job", "Progress", "Skipped", "Training", "plan", "run"]
