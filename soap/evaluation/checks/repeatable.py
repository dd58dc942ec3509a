"""Check 18: the same seed gives the same images, and another batch size the same decisions."""

import math
from dataclasses import dataclass

import torch

from soap.evaluation.checks.check import PASS, WARN, Check, Evidence, Judgement, Measurement, percent
from soap.evaluation.checks.context import MeasurementContext, varied_if_possible
from soap.evaluation.paired import Images
from soap.evaluation.protocols import HALF_A_POINT
from soap.evaluation.summary import Summary

IMAGES = 32
OTHER_BATCH = 7
MAX_Z, MAX_CLEAN_Z = 4.0, 2.0
"""Standardised differences that chance does not explain, and those that it does."""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """Images that differ between two runs, and decisions that differ between two batch sizes (batches).

    moved: change of accuracy between the batch sizes. different_labels: of `labels` clean images whose label the run
    stored, those that get another label now; not of a random defence.
    """

    images: int
    different_images: int
    different_decisions: int
    batches: tuple[int, ...]
    moved: float
    different_labels: int = 0
    labels: int = 0


def measure(context: MeasurementContext) -> Repetition:
    """Run the strongest attack twice, and classify its result in two batch sizes."""
    x, y = context.few(IMAGES)
    attack = varied_if_possible(context.strongest.attack, restarts=1)
    runs = [context.attacked(attack, context.model, x, y, salt=18) for _ in range(2)]
    different = int((runs[0] != runs[1]).flatten(1).any(1).sum())
    if context.run.random:  # its decisions vary by themselves
        return Repetition(images=len(x), different_images=different, different_decisions=0, batches=(), moved=0.0)
    whole = context.correct(runs[0], y)
    pairs = zip(torch.split(runs[0], OTHER_BATCH), torch.split(y, OTHER_BATCH), strict=True)
    parts = torch.cat([context.correct(*pair) for pair in pairs])
    points, stored = context.clean
    return Repetition(
        images=len(x),
        different_images=different,
        different_decisions=int((whole != parts).sum()),
        batches=(min(len(x), context.run.batch_size), OTHER_BATCH),
        moved=abs(float((whole.double() - parts.double()).mean())),
        different_labels=int((~context.correct(points, stored)).sum()),
        labels=len(points),
    )


def first_batch_ahead(summary: Summary) -> str:
    """How far the first batch is ahead of the others in the worst case, where chance does not explain it; else empty.

    Compared by the test for two shares, and only where accuracy on clean images does not differ as well, as it does
    where the data are sorted by difficulty.
    """
    size = int(summary.plan["batch_size"])
    if len(summary.worst.values) < 2 * size:
        return ""
    first, others = summary.worst.values[:size], summary.worst.values[size:]
    clean = summary.clean.values
    if _ahead(first, others) < MAX_Z or abs(_ahead(clean[:size], clean[size:])) > MAX_CLEAN_Z:
        return ""
    return f"{percent(float(first.mean()))} in the first batch, {percent(float(others.mean()))} in the others"


def _ahead(one: Images, other: Images) -> float:
    """The standardised difference of two shares."""
    share = (one.sum() + other.sum()) / (len(one) + len(other))
    spread = math.sqrt(max(share * (1 - share), 1e-12) * (1 / len(one) + 1 / len(other)))
    return float(one.mean() - other.mean()) / spread


MEASUREMENT = Measurement("repeat", Repetition, measure, quick=False)


def judge(evidence: Evidence) -> Judgement:
    """WARN where images differ, or where decisions depend on the batch."""
    found = evidence.record(MEASUREMENT)
    measured = f"{found.different_images} of {found.images} images differ in a second run"
    if found.batches:
        (one, other), moved = found.batches, found.different_decisions
        measured += f"; {moved} {'decision' if moved == 1 else 'decisions'} in batches of {other} instead of {one}"
    if found.different_labels > HALF_A_POINT * found.labels:
        measured += f"; {found.different_labels} of {found.labels} clean images get another label than in the run"
        return WARN, measured, "The defence does not classify the images of the run as it did: it has changed since."
    if chance := first_batch_ahead(evidence.summary):
        return (
            WARN,
            f"{chance}; {measured}",
            "The defence does better on the images that it saw first: it remembers them.",
        )
    if found.different_images:
        return WARN, measured, "The same seed does not give the same images."
    if found.moved >= HALF_A_POINT:
        return WARN, measured, "A prediction depends on the other images of its batch: accuracy holds for this size."
    return PASS, measured, "The same seed gives the same bits."


CHECKS = (Check(18, "repeatable", judge, (MEASUREMENT,)),)
