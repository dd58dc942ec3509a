"""What a measurement gets: the defence, a few images, and the strongest attempts of the run."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from soap._runtime import seeding
from soap._runtime.isolation import isolated
from soap.attacks import APGD, Attack
from soap.attacks.losses import TARGETED
from soap.balls import BALLS, Ball
from soap.data import Dataset
from soap.defence import Defence
from soap.errors import InputError
from soap.evaluation.attempts import predicted_labels, seeded
from soap.evaluation.plan import ADAPTIVE, Attempt, PlannedRun, Threat
from soap.evaluation.summary import Summary
from soap.gradient_rules import with_finite_logits
from soap.results import wilson
from soap.shapes import Float, Int, Tensor
from soap.specs import AttackStep, call_text


class ImpossibleError(Exception):
    """A measurement does not apply to this defence; the message gives the reason and becomes a finding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasurementContext:
    """x, y: the first images that the defence classifies correctly. surviving: images and labels no attempt broke.

    share: the share of all images that one of `surviving` represents, so that a count becomes a change of accuracy.
    ranked: attempts with gradient steps, strongest first, one for each gradient rule. left: share of x that survived
    the protocol of the strongest. batch: images in one call.
    """

    defence: Defence
    threat: Threat
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, "n"]
    surviving: tuple[Float[Tensor, "m *shape"], Int[Tensor, "m"]]
    share: float
    ranked: tuple[Attempt, ...]
    left: float
    seed: int
    batch: int

    @property
    def strongest(self) -> Attempt:
        """The attempt that measurements vary."""
        if not self.ranked:
            raise ImpossibleError("no attempt of this suite uses gradient steps")
        return self.ranked[0]

    @property
    def ball(self) -> Ball:
        """The ball of the threat."""
        return BALLS[self.threat.norm](self.threat.eps)

    @property
    def model(self) -> nn.Module:
        """The defence as the strongest attempt sees it."""
        return seen_by_attempt(self.defence, self.strongest)

    @cached_property
    def memory(self) -> dict[str, Any]:
        """Results that several measurements share."""
        return {}

    def few(self, n: int) -> tuple[Tensor, Tensor]:
        """The first `n` images and labels."""
        return self.x[:n], self.y[:n]

    def attacked(self, attack: Attack, model: nn.Module, x: Tensor, y: Tensor, *, salt: int = 0) -> Tensor:
        """The images after the attack, batch by batch. salt: distinguishes the seeds of measurements."""
        parts = [
            seeded(attack, seeding.seed_for(self.seed, salt, start))(
                with_finite_logits(model, x[start : start + self.batch]),
                x[start : start + self.batch],
                y[start : start + self.batch],
            )
            for start in range(0, len(x), self.batch)
        ]
        return torch.cat(parts) if parts else x

    def correct(self, x: Tensor, y: Tensor) -> Tensor:
        """Which images the whole defence classifies as `y`."""
        with isolated(self.defence):
            parts = [predicted_labels(self.defence, part)[0] for part in torch.split(x, self.batch)] if len(x) else [y]
        return torch.cat(parts) == y


def measurement_context(run: PlannedRun, summary: Summary, *, max_images: int) -> MeasurementContext:
    """The context of a run whose attempts are done, with at most `max_images` images of each kind."""
    if len(summary.protocols) < len({one.protocol for one in run.attempts}):
        raise InputError("the attempts of this run are not done; finish run_attempts before run_measurements.")
    data = run.data
    rows = np.flatnonzero(summary.clean.defended)[:max_images]
    surviving = np.flatnonzero(summary.worst.defended)
    tried = surviving[:max_images]
    order = ranked_attempts(run.attempts, summary)
    left = summary.outcomes[order[0].protocol].survived[rows] if order else np.ones(len(rows))
    x, y = _at(data, rows)
    return MeasurementContext(
        defence=run.defence,
        threat=run.threat,
        x=x,
        y=y,
        surviving=_at(data, tried),
        share=len(surviving) / max(1, len(tried)) / len(data),
        ranked=order,
        left=float(left.mean()) if len(rows) else 0.0,
        seed=run.seed,
        batch=run.batch,
    )


def _at(data: Dataset, rows: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy(rows).to(data.x.device)
    return data.x[index], data.y[index]


def seen_by_attempt(defence: Defence, attempt: Attempt) -> nn.Module:
    """The defence as the attempt sees it."""
    model = defence.seen_by(attempt.rule, scale=attempt.scale)
    if model is None:
        raise ImpossibleError(f"the defence has no gradient rule {attempt.rule}")
    return model


def ranked_attempts(attempts: Sequence[Attempt], summary: Summary) -> tuple[Attempt, ...]:
    """Attempts with gradient steps: adaptive ones first, APGD first among them, then by the share they broke.

    Targeted losses come last, because they cost a run for each target. The share is of the images that an attempt
    attacked, by the lower end of its interval: later attempts attack few.
    """

    def rank(index: int) -> tuple[bool, bool, bool, float]:
        met, broken = summary.broken.get(index, (0, 0))
        share = wilson(broken, met)[0] if met else 0.0
        attack = attempts[index].attack
        targeted = getattr(attack, "loss", "") in TARGETED
        return attempts[index].protocol not in ADAPTIVE, not isinstance(attack, APGD), targeted, -share

    able = sorted((index for index, one in enumerate(attempts) if _has_gradient_steps(one)), key=rank)
    views: dict[tuple[str, float], Attempt] = {}
    for index in able:
        views.setdefault((attempts[index].rule, attempts[index].scale), attempts[index])
    return tuple(views.values())


def _has_gradient_steps(attempt: Attempt) -> bool:
    names = _setting_names(attempt.attack)
    return {"eps", "steps"} <= names and attempt.protocol not in ("auxiliary-aware", "black-box")


def _setting_names(attack: Attack) -> set[str]:
    return {field.name for field in fields(attack)}  # type: ignore[arg-type]


def varied(attack: Attack, **changes: Any) -> Attack:
    """The attack with other settings; the step size keeps its ratio to the radius."""
    missing = set(changes) - _setting_names(attack)
    if missing:
        raise ImpossibleError(f"{type(attack).__name__} has no setting {min(missing)}")
    if "eps" in changes and "step_size" in _setting_names(attack):
        changes["step_size"] = attack.step_size * changes["eps"] / attack.eps  # type: ignore[attr-defined]
    made: Attack = replace(attack, **changes)  # type: ignore[type-var]
    return made


def with_margin_loss(attack: Attack) -> Attack:
    """The attack on the margin, which needs two classes only; unchanged where it has no choice of loss."""
    return varied(attack, loss="margin") if "loss" in _setting_names(attack) else attack


def without_restarts(attack: Attack) -> Attack:
    """The attack with one start; unchanged where it has no restarts."""
    return varied(attack, restarts=1) if "restarts" in _setting_names(attack) else attack


def attempt_text(step: AttackStep) -> str:
    """An attempt for facts: "APGD(eps=0.3) on unrolled, scale=3"."""
    scale = "" if step.scale is None else f", scale={step.scale:g}"
    return f"{call_text(step)} on {step.rule}{scale}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearest:
    """Finds the image of `x` that a point belongs to: the nearest in `norm`. Attacks drop and reorder samples.

    Correct where the balls around the images do not overlap: for images farther apart than twice the radius.
    """

    x: Float[Tensor, "n *shape"]
    norm: str

    def __call__(self, points: Float[Tensor, "batch *shape"]) -> Int[Tensor, "batch"]:
        """The number of the nearest image of each point."""
        p = torch.inf if self.norm == "linf" else 2.0
        with torch.no_grad():
            return torch.cdist(points.detach().flatten(1), self.x.flatten(1).to(points.dtype), p=p).argmin(1)
