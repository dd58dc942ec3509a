"""Check 3: the defence returns the same logits on every call; otherwise attacks must account for the randomness."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from soap._runtime import seeding
from soap._runtime.isolation import isolated, preserved_random_state
from soap.evaluation.checks.check import FAIL, PASS, WARN, Check, Evidence, Judgement, Measurement, percent
from soap.evaluation.checks.context import ImpossibleError, MeasurementContext
from soap.shapes import Tensor

IMAGES = 64
CALLS = 5
DRAWS = 8
RELATIVE_TOLERANCE = 1e-4
"""Difference of logits, relative to their size, that rounding may cause."""


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """Difference of the outputs over several calls.

    Of a random defence: expectation, accuracy under an attack on the mean of `draws` draws; fixed, accuracy under an
    attack on one fixed draw (Athalye et al. 2018); None where no attack could be made.
    """

    images: int
    calls: int
    difference: float
    changed_labels: int
    deterministic: bool
    expectation: float | None = None
    fixed: float | None = None
    draws: int | None = None


def measure(context: MeasurementContext) -> Determinism:
    """Compare the logits of several calls; attack a random defence in both ways."""
    x, _ = context.few(IMAGES)
    with isolated(context.defence), torch.no_grad():
        calls = torch.stack([context.defence(x) for _ in range(CALLS)]).double().nan_to_num()
    difference = float((calls - calls[0]).abs().amax() / calls[0].abs().amax().clamp_min(1e-30))
    changed = int((calls.argmax(2) != calls[0].argmax(1)).any(0).sum())
    found = Determinism(
        images=len(x),
        calls=CALLS,
        difference=difference,
        changed_labels=changed,
        deterministic=difference <= RELATIVE_TOLERANCE and changed == 0,
    )
    return found if found.deterministic else _attacked_both_ways(context, found)


def _attacked_both_ways(context: MeasurementContext, found: Determinism) -> Determinism:
    try:
        attack, model = context.strongest.attack, context.model
    except ImpossibleError:
        return found
    x, y = context.few(IMAGES)
    attacked = context.attacked(attack, MeanOfDraws(model), x, y)
    with isolated(context.defence), torch.no_grad():
        correct = [(context.defence(attacked).argmax(1) == y).double().mean() for _ in range(CALLS)]
    fixed = FixedDraw(model, context.seed)
    attacked = context.attacked(attack, fixed, x, y)
    with isolated(fixed), torch.no_grad():
        survived = (fixed(attacked).argmax(1) == y).double().mean()
    return replace(found, expectation=float(torch.stack(correct).mean()), fixed=float(survived), draws=DRAWS)


class MeanOfDraws(nn.Module):
    """The mean of the logits of a random model over several draws."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits."""
        mean: Tensor = torch.stack([self.model(x) for _ in range(DRAWS)]).mean(0)
        return mean


class FixedDraw(nn.Module):
    """A random model with the same random numbers on every call."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        super().__init__()
        self.model, self.seed = model, seed

    def forward(self, x: Tensor) -> Tensor:
        """Logits after seeding; the global random state is restored."""
        with preserved_random_state():
            torch.manual_seed(seeding.seed_for(self.seed))
            logits: Tensor = self.model(x)
        return logits


MEASUREMENT = Measurement("determinism", Determinism, measure)


def judge(evidence: Evidence) -> Judgement:
    """WARN for a random defence that was attacked in both ways, FAIL for one that was not."""
    found = evidence.record(MEASUREMENT)
    measured = f"{found.changed_labels} of {found.images} labels change over {found.calls} calls"
    if found.deterministic:
        return PASS, measured, "The defence returns the same logits on every call."
    if found.expectation is None or found.fixed is None:
        return FAIL, measured, "The defence is random, and no attack took that into account."
    both = f"{percent(found.expectation)} against the expectation of {found.draws} draws, "
    both += f"{percent(found.fixed)} with the draw fixed"
    return (
        WARN,
        f"{measured}; {both}",
        "The defence is random, and each attempt saw a single draw: the lower of the two accuracies is more accurate.",
    )


CHECKS = (Check(3, "deterministic", judge, (MEASUREMENT,)),)
