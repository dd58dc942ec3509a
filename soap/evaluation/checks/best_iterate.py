"""Along the attack: whether it returns the best point that it visited (check 7), and how its loss rose (report)."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from soap._runtime import seeding
from soap.attacks import APGD
from soap.attacks.apgd import Trace
from soap.evaluation.adaptive.attackable import attackable
from soap.evaluation.adaptive.probes.nearest import Nearest
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject
from soap.evaluation.adaptive.suite import seeded
from soap.gradient_rules import Criterion, logits_and_gradient
from soap.shapes import Int, Tensor

IMAGES = 64


def best_kept(subject: Subject) -> dict[str, Any]:
    """How many images the attack broke on its way and gave back unbroken.

    The attack runs on a model that remembers, so that nothing need be known of it. What it remembers is asked again: a
    point that breaks in one batch and not in another is `doubtful`, and no loss.
    """
    walked, y = _walked(subject), subject.few(IMAGES)[1]
    ends, again = ~subject.right(walked.found, y), ~subject.right(walked.breaking, y)
    return {
        "images": len(y),
        "broken_on_the_way": int(walked.broken.sum()),
        "broken_at_the_end": int(ends.sum()),
        "lost": int((walked.broken & again & ~ends).sum()),
        "doubtful": int((walked.broken & ~again).sum()),
        "attack": subject.strongest.settings,
    }


def loss_curve(subject: Subject) -> dict[str, Any]:
    """Mean loss and share of unbroken images after every step; an image that left keeps the loss it left with."""
    trace = _walked(subject).trace
    if trace is None:
        raise ImpossibleError(f"{type(subject.strongest.attack).__name__} does not tell its losses step by step")
    losses = list(trace.loss_curve.nan_to_num(nan=torch.nan, posinf=torch.nan, neginf=torch.nan))
    for step in range(1, len(losses)):
        losses[step] = torch.where(losses[step].isnan(), losses[step - 1], losses[step])
    means = torch.stack(losses).nanmean(1).nan_to_num()
    steps = torch.arange(len(means), device=means.device)
    hit = trace.fooled_at
    standing = ((hit < 0) | (hit > steps[:, None])).double().mean(1)
    return {"attack": subject.strongest.settings, "loss": means.tolist(), "standing": standing.tolist()}


class Witness(nn.Module):
    """The model; remembers which images were ever misclassified at a point that it was asked about, and the first."""

    def __init__(self, model: nn.Module, nearest: Nearest, y: Int[Tensor, "n"]) -> None:
        super().__init__()
        self.model, self.nearest, self.y = model, nearest, y
        self.broken = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        self.breaking = nearest.x.clone()

    def forward(self, x: Tensor) -> Tensor:
        """The model's own logits."""
        logits: Tensor = self.model(x)
        self._note(x, logits)
        return logits

    def logits_and_gradient(self, x: Tensor, criterion: Criterion) -> tuple[Tensor, Tensor]:
        """The model's own view."""
        logits, direction = logits_and_gradient(self.model, x, criterion)
        self._note(x, logits)
        return logits, direction

    def _note(self, x: Tensor, logits: Tensor) -> None:
        rows = self.nearest(x)
        new = (logits.detach().argmax(1) != self.y[rows]) & ~self.broken[rows]
        self.broken[rows[new]], self.breaking[rows[new]] = True, x.detach()[new]


@dataclass(frozen=True, kw_only=True, eq=False)
class Walked:
    """A run of the attack: which images it broke on its way and where, what it returned, and its trace if any."""

    broken: Tensor
    breaking: Tensor
    found: Tensor
    trace: Trace | None


_walks: "WeakKeyDictionary[Subject, Walked]" = WeakKeyDictionary()
"""Two facts are read from the one run."""


def _walked(subject: Subject) -> Walked:
    if subject not in _walks:
        x, y = subject.few(IMAGES)
        witness = Witness(attackable(subject.model, x), Nearest(x=x, norm=subject.threat.norm), y)
        attack = seeded(subject.strongest.attack, seeding.seed_for(subject.seed, 7))
        trace = attack.trace(witness, x, y) if isinstance(attack, APGD) else None
        found = attack(witness, x, y) if trace is None else trace.x
        _walks[subject] = Walked(broken=witness.broken, breaking=witness.breaking, found=found, trace=trace)
    return _walks[subject]
