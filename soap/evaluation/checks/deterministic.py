"""What the defence answers: logits or probabilities (check 2), and whether it always answers the same (check 3)."""

from typing import Any

import torch
from torch import nn

from soap._runtime import seeding
from soap._runtime.isolation import isolated, preserved_random_state
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject
from soap.shapes import Tensor

IMAGES = 64
CALLS = 5
DRAWS = 8
ROUNDING = 1e-4
"""Logits that differ by less than this share of their size differ by rounding."""


def output_kind(subject: Subject) -> dict[str, Any]:
    """Range and row sums of the outputs on a few images."""
    x, _ = subject.few(IMAGES)
    with isolated(subject.target.defended), torch.no_grad():
        logits = subject.target.defended(x)
    finite = bool(torch.isfinite(logits).all())
    sums = bool(((logits.sum(1) - 1).abs() < 1e-3).all()) if finite else False
    return {
        "images": len(x),
        "finite": finite,
        "probabilities": finite and sums and bool(logits.min() >= 0),
        "low": float(logits.min()) if finite else None,
        "high": float(logits.max()) if finite else None,
    }


def determinism(subject: Subject) -> dict[str, Any]:
    """How far the outputs of several calls differ; where they do, accuracy against the two attacks that it takes."""
    x, _ = subject.few(IMAGES)
    defended = subject.target.defended
    with isolated(defended), torch.no_grad():
        calls = torch.stack([defended(x) for _ in range(CALLS)]).double().nan_to_num()
    apart = float((calls - calls[0]).abs().amax() / calls[0].abs().amax().clamp_min(1e-30))
    flips = int((calls.argmax(2) != calls[0].argmax(1)).any(0).sum())
    found: dict[str, Any] = {
        "images": len(x),
        "calls": CALLS,
        "difference": apart,
        "changed_labels": flips,
        "deterministic": apart <= ROUNDING and flips == 0,
    }
    return found if found["deterministic"] else {**found, **_both(subject)}


def _both(subject: Subject) -> dict[str, Any]:
    """Accuracy when the attacker averages over draws, and when the draw is fixed and known (Athalye et al. 2018)."""
    try:
        attack, model = subject.strongest.attack, subject.model
    except ImpossibleError:
        return {"expectation": None, "fixed": None}
    x, y = subject.few(IMAGES)
    attacked = subject.strike(attack, Expected(model), x, y)
    with isolated(subject.target.defended), torch.no_grad():
        right = [(subject.target.defended(attacked).argmax(1) == y).double().mean() for _ in range(CALLS)]
    fixed = Fixed(model, subject.seed)
    attacked = subject.strike(attack, fixed, x, y)
    with isolated(fixed), torch.no_grad():
        stands = (fixed(attacked).argmax(1) == y).double().mean()
    return {"expectation": float(torch.stack(right).mean()), "fixed": float(stands), "draws": DRAWS}


class Expected(nn.Module):
    """The mean of the model's logits over several draws, which is what an attacker climbs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits."""
        mean: Tensor = torch.stack([self.model(x) for _ in range(DRAWS)]).mean(0)
        return mean


class Fixed(nn.Module):
    """The model with the same random numbers at every call."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        super().__init__()
        self.model, self.seed = model, seed

    def forward(self, x: Tensor) -> Tensor:
        """Logits after seeding; the global random state is put back."""
        with preserved_random_state():
            torch.manual_seed(seeding.seed_for(self.seed))
            logits: Tensor = self.model(x)
        return logits
