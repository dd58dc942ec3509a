"""Check 7: the attack returns every image broken that it broke at any step; and its loss curve, for the report."""

from dataclasses import dataclass

import torch
from torch import nn

from soap._runtime import seeding
from soap.attacks import APGD
from soap.attacks.apgd import Trace
from soap.evaluation.attempts import seeded
from soap.evaluation.checks import outputs
from soap.evaluation.checks.check import PASS, WARN, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import ImpossibleError, MeasurementContext, Nearest, attempt_text
from soap.evaluation.protocols import HALF_A_POINT
from soap.gradient_rules import Criterion, logits_and_gradient, with_finite_logits
from soap.shapes import Int, Tensor

IMAGES = 64


@dataclass(frozen=True, kw_only=True)
class BestIterate:
    """Images broken at any step, at the end, and broken on the way but returned unbroken (lost).

    doubtful: broken in one batch and not when classified again in another; not counted as lost.
    """

    images: int
    broken_on_the_way: int
    broken_at_the_end: int
    lost: int
    attack: str
    doubtful: int = 0


@dataclass(frozen=True, kw_only=True)
class LossTrace:
    """Mean loss and share of unbroken images after every step; an image that left keeps its last loss."""

    attack: str
    loss: tuple[float, ...]
    standing: tuple[float, ...]


def measure(context: MeasurementContext) -> BestIterate:
    """Run the strongest attack on a model that remembers the points it was asked about."""
    model, found, _ = _observed_attack(context)
    ends, again = ~context.correct(found, model.y), ~context.correct(model.breaking, model.y)
    return BestIterate(
        images=len(found),
        broken_on_the_way=int(model.broken.sum()),
        broken_at_the_end=int(ends.sum()),
        lost=int((model.broken & again & ~ends).sum()),
        doubtful=int((model.broken & ~again).sum()),
        attack=attempt_text(context.strongest),
    )


def measure_loss_curve(context: MeasurementContext) -> LossTrace:
    """The loss of the same attack, step by step."""
    _, _, trace = _observed_attack(context)
    if trace is None:
        raise ImpossibleError(f"{type(context.strongest.attack).__name__} does not return its losses step by step")
    losses = list(trace.loss_curve.nan_to_num(nan=torch.nan, posinf=torch.nan, neginf=torch.nan))
    for step in range(1, len(losses)):
        losses[step] = torch.where(losses[step].isnan(), losses[step - 1], losses[step])
    means = torch.stack(losses).nanmean(1).nan_to_num()
    steps = torch.arange(len(means), device=means.device)
    survived = ((trace.fooled_at < 0) | (trace.fooled_at > steps[:, None])).double().mean(1)
    return LossTrace(
        attack=attempt_text(context.strongest), loss=tuple(means.tolist()), standing=tuple(survived.tolist())
    )


class RememberingModel(nn.Module):
    """The model; it remembers which images were misclassified at any point, and the first such point."""

    def __init__(self, model: nn.Module, nearest: Nearest, y: Int[Tensor, "n"]) -> None:
        super().__init__()
        self.model, self.nearest, self.y = model, nearest, y
        self.broken = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        self.breaking = nearest.x.clone()

    def forward(self, x: Tensor) -> Tensor:
        """The model's own logits."""
        logits: Tensor = self.model(x)
        self._remember(x, logits)
        return logits

    def logits_and_gradient(self, x: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor]:
        """The model's own logits and gradient."""
        logits, direction = logits_and_gradient(self.model, x, criterion)
        self._remember(x, logits)
        return logits, direction

    def _remember(self, x: Tensor, logits: Tensor) -> None:
        rows = self.nearest(x)
        new = (logits.detach().argmax(1) != self.y[rows]) & ~self.broken[rows]
        self.broken[rows[new]], self.breaking[rows[new]] = True, x.detach()[new]


def _observed_attack(context: MeasurementContext) -> tuple[RememberingModel, Tensor, Trace | None]:
    """The model after the attack, the attacked images, and APGD's trace; one run for both measurements."""
    if "observed attack" not in context.memory:
        x, y = context.few(IMAGES)
        model = RememberingModel(with_finite_logits(context.model, x), Nearest(x=x, norm=context.run.threat.norm), y)
        attack = seeded(context.strongest.attack, seeding.seed_for(context.run.seed, 7))
        trace = attack.trace(model, x, y) if isinstance(attack, APGD) else None
        found = attack(model, x, y) if trace is None else trace.x
        context.memory["observed attack"] = model, found, trace
    made: tuple[RememberingModel, Tensor, Trace | None] = context.memory["observed attack"]
    return made


MEASUREMENT = Measurement("best-iterate", BestIterate, measure)
LOSS_CURVE = Measurement("loss-curve", LossTrace, measure_loss_curve)


def judge(evidence: Evidence) -> Judgement:
    """WARN where more than half a point of the images is lost."""
    found = evidence.record(MEASUREMENT)
    if not evidence.record(outputs.DETERMINISM).deterministic:
        meaning = "The defence is random: a point that broke it once need not break it again, so fresh draws judge it."
        return PASS, "random defence", meaning
    measured = f"{found.lost} of {found.broken_on_the_way} images broken on the way were returned unbroken"
    if found.doubtful:
        measured += f"; {found.doubtful} broke in one batch and not in another"
    if found.lost > HALF_A_POINT * found.images:
        return WARN, measured, "The attack does not return its best iterate."
    return PASS, measured, "The attack returns its best iterate."


CHECKS = (Check(7, "best iterate kept", judge, (MEASUREMENT, LOSS_CURVE)),)
