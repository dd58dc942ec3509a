"""Check 18: the same seed gives the same images, and another batch size the same decisions."""

from dataclasses import dataclass

import torch

from soap.evaluation.checks.check import HALF_A_POINT, PASS, WARN, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import MeasurementContext, varied_if_possible

IMAGES = 32
OTHER_BATCH = 7


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """Images that differ between two runs, and decisions that differ between two batch sizes (batches).

    moved: change of accuracy between the batch sizes.
    """

    images: int
    different_images: int
    different_decisions: int
    batches: tuple[int, ...]
    moved: float


def measure(context: MeasurementContext) -> Repetition:
    """Run the strongest attack twice, and classify its result in two batch sizes."""
    x, y = context.few(IMAGES)
    attack = varied_if_possible(context.strongest.attack, restarts=1)
    runs = [context.attacked(attack, context.model, x, y, salt=18) for _ in range(2)]
    whole = context.correct(runs[0], y)
    pairs = zip(torch.split(runs[0], OTHER_BATCH), torch.split(y, OTHER_BATCH), strict=True)
    parts = torch.cat([context.correct(*pair) for pair in pairs])
    return Repetition(
        images=len(x),
        different_images=int((runs[0] != runs[1]).flatten(1).any(1).sum()),
        different_decisions=int((whole != parts).sum()),
        batches=(min(len(x), context.batch), OTHER_BATCH),
        moved=abs(float((whole.double() - parts.double()).mean())),
    )


MEASUREMENT = Measurement("repeat", Repetition, measure, quick=False)


def judge(evidence: Evidence) -> Judgement:
    """WARN where images differ, or where decisions depend on the batch."""
    found = evidence.record(MEASUREMENT)
    one, other = found.batches
    moved = found.different_decisions
    measured = f"{found.different_images} of {found.images} images differ in a second run; "
    measured += f"{moved} {'decision' if moved == 1 else 'decisions'} in batches of {other} instead of {one}"
    if found.different_images:
        return WARN, measured, "The same seed does not give the same images."
    if found.moved >= HALF_A_POINT:
        return WARN, measured, "A prediction depends on the other images of its batch: accuracy holds for this size."
    return PASS, measured, "The same seed gives the same bits."


CHECKS = (Check(18, "repeatable", judge, (MEASUREMENT,)),)
