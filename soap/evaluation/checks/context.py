"""What a measurement gets: the defence, a few images, and the strongest attempts of the run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from soap._runtime import seeding
from soap._runtime.isolation import isolated
from soap.attacks import APGD, Attack
from soap.attacks.losses import TARGETED
from soap.balls import BALLS, Ball
from soap.defence import Defence
from soap.errors import InputError
from soap.evaluation.attempts import predicted_labels, seeded
from soap.evaluation.plan import ADAPTIVE, Attempt, PlannedRun, Threat
from soap.evaluation.summary import Summary
from soap.gradient_rules import with_finite_logits
from soap.results import wilson
from soap.shapes import Float, Int, Tensor
from soap.specs import call_text, spec_of

MAX_IMAGES = 100
"""Images of each measurement."""


class ImpossibleError(Exception):
    """A measurement does not apply to this defence; the message gives the reason and becomes a finding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasurementContext:
    """x, y: the first images that the defence classifies correctly. surviving: images and labels no attempt broke.

    share: the share of all images that one of `surviving` represents, so that a count becomes a change of accuracy.
    ranked: attempts with gradient steps, strongest first, one for each gradient rule. left: share of x that survived
    the protocol of the strongest. batch: images in one call. memory: results that several measurements share.
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
    memory: dict[str, Any] = field(default_factory=dict)

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
        return self.strongest.seen(self.defence)

    def few(self, n: int) -> tuple[Tensor, Tensor]:
        """The first `n` images and labels."""
        return self.x[:n], self.y[:n]

    def attacked(self, attack: Attack, model: nn.Module, x: Tensor, y: Tensor, *, salt: int = 0) -> Tensor:
        """The images after the attack, batch by batch. salt: distinguishes the seeds of measurements."""
        parts = []
        for start in range(0, len(x), self.batch):
            part, labels = x[start : start + self.batch], y[start : start + self.batch]
            own = seeded(attack, seeding.seed_for(self.seed, salt, start))
            parts.append(own(with_finite_logits(model, part), part, labels))
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
    rows = np.flatnonzero(summary.clean.defended)[:max_images]
    surviving = np.flatnonzero(summary.worst.defended)
    tried = surviving[:max_images]
    order = ranked_attempts(run.attempts, summary)
    strongest = summary.protocol(order[0].protocol) if order else None
    left = np.ones(len(rows)) if strongest is None else strongest.defended[rows]
    (x, y), some = run.data_at(rows), run.data_at(tried)
    return MeasurementContext(
        defence=run.defence,
        threat=run.threat,
        x=x,
        y=y,
        surviving=some,
        share=len(surviving) / max(1, len(tried)) / len(run.data),
        ranked=order,
        left=float(left.mean()) if len(rows) else 0.0,
        seed=run.seed,
        batch=run.batch,
    )


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

    able = [
        index
        for index, one in enumerate(attempts)
        if {"eps", "steps"} <= _setting_names(one.attack) and one.protocol not in ("auxiliary-aware", "black-box")
    ]
    views: dict[tuple[str, float], Attempt] = {}
    for index in sorted(able, key=rank):
        views.setdefault((attempts[index].rule, attempts[index].scale), attempts[index])
    return tuple(views.values())


def _setting_names(attack: Attack) -> set[str]:
    return {each.name for each in fields(attack)}  # type: ignore[arg-type]


def varied(attack: Attack, **changes: Any) -> Attack:
    """The attack with other settings; the step size keeps its ratio to the radius."""
    missing = set(changes) - _setting_names(attack)
    if missing:
        raise ImpossibleError(f"{type(attack).__name__} has no setting {min(missing)}")
    if "eps" in changes and "step_size" in _setting_names(attack):
        changes["step_size"] = attack.step_size * changes["eps"] / attack.eps  # type: ignore[attr-defined]
    made: Attack = replace(attack, **changes)  # type: ignore[type-var]
    return made


def varied_if_possible(attack: Attack, **changes: Any) -> Attack:
    """The attack with those of the settings that it has."""
    return varied(attack, **{name: value for name, value in changes.items() if name in _setting_names(attack)})


def attack_text(attack: Attack, attempt: Attempt) -> str:
    """An attack in the view of an attempt, for facts: "APGD(eps=0.3) on unrolled"."""
    return f"{call_text(spec_of(attack))} on {attempt.rule}"


def attempt_text(attempt: Attempt) -> str:
    """An attempt for facts: "APGD(eps=0.3) on unrolled, scale=3"."""
    scale = attempt.step.scale
    return attack_text(attempt.attack, attempt) + ("" if scale is None else f", scale={scale:g}")


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
