"""What every probe is given: a defence, a few images, and the attack that did most against it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from soap._runtime import seeding
from soap._runtime.isolation import isolated
from soap.attacks import APGD, Attack
from soap.attacks.losses import TARGETED
from soap.attacks.pgd import BALLS
from soap.balls import Ball
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.adaptive.attackable import attackable
from soap.evaluation.adaptive.attempts import ADAPTIVE, Attempt, Threat
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.suite import seeded
from soap.evaluation.adaptive.summary import summarise
from soap.evaluation.adaptive.target import Target
from soap.results import wilson
from soap.shapes import Float, Int, Tensor


class ImpossibleError(Exception):
    """A probe cannot be made for this target; the message says why, and becomes a finding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """x, y: the first images that the defence classifies rightly; standing: those that no attempt broke.

    share: how much of all images one of `standing` stands for, so that a count of them becomes a change of accuracy.
    ranked: attempts that go by gradient steps, the strongest first, one for each way to see the model. left: share of x
    that stood against the protocol of the strongest. batch: images at once.
    """

    target: Target
    threat: Threat
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, "n"]
    standing: tuple[Float[Tensor, "m *shape"], Int[Tensor, "m"]]
    share: float
    ranked: tuple[Attempt, ...]
    left: float
    seed: int
    batch: int

    @property
    def strongest(self) -> Attempt:
        """The attempt that the probes vary."""
        if not self.ranked:
            raise ImpossibleError("no attempt of this suite goes by gradient steps")
        return self.ranked[0]

    @property
    def ball(self) -> Ball:
        """The threat's."""
        return BALLS[self.threat.norm](self.threat.eps)

    @property
    def model(self) -> nn.Module:
        """The model as the strongest attempt sees it."""
        return seen(self.target, self.strongest)

    def few(self, n: int) -> tuple[Tensor, Tensor]:
        """The first `n` images and labels."""
        return self.x[:n], self.y[:n]

    def strike(self, attack: Attack, model: nn.Module, x: Tensor, y: Tensor, *, salt: int = 0) -> Tensor:
        """What the attack makes of the images, batch by batch."""
        parts = [
            seeded(attack, seeding.seed_for(self.seed, salt, start))(
                attackable(model, x[start : start + self.batch]),
                x[start : start + self.batch],
                y[start : start + self.batch],
            )
            for start in range(0, len(x), self.batch)
        ]
        return torch.cat(parts) if parts else x

    def right(self, x: Tensor, y: Tensor) -> Tensor:
        """Which images the whole defence classifies as `y`."""
        with isolated(self.target.defended):
            parts = [self.target.answers(part)[0] for part in torch.split(x, self.batch)] if len(x) else [y]
        return torch.cat(parts) == y


def subject(
    target: Target,
    data: Dataset,
    threat: Threat,
    planned: Sequence[Attempt],
    folder: RunFolder,
    *,
    seed: int,
    probe_n: int,
) -> Subject:
    """The first `probe_n` images, and the first that still stand, of a run that is done."""
    summary = summarise(folder, data)
    if len(summary.protocols) < len({one.protocol for one in planned}):
        raise InputError("the attempts of this run are not done; finish run_attempts before run_probes.")
    rows = np.flatnonzero(summary.clean.defended)[:probe_n]
    alive = np.flatnonzero(summary.worst.defended)
    tried = alive[:probe_n]
    order = ranking(planned, folder, data)
    left = summary.outcomes[order[0].protocol].standing[rows] if order else np.ones(len(rows))

    def at(rows: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(rows).to(data.x.device)
        return data.x[index], data.y[index]

    x, y = at(rows)
    return Subject(
        target=target,
        threat=threat,
        x=x,
        y=y,
        standing=at(tried),
        share=len(alive) / max(1, len(tried)) / len(data),
        ranked=order,
        left=float(left.mean()) if len(rows) else 0.0,
        seed=seed,
        batch=int(summary.plan["batch"]),
    )


def seen(target: Target, attempt: Attempt) -> nn.Module:
    """The target as the attempt sees it."""
    model = target.sight(attempt.sight, attempt.scale)
    if model is None:
        raise ImpossibleError(f"the target has no {attempt.sight}")
    return model


def ranking(planned: Sequence[Attempt], folder: RunFolder, data: Dataset) -> tuple[Attempt, ...]:
    """Attempts with steps: those that know a purifier first, APGD first among them, then by what they broke.

    Targeted losses come last, since they cost a run for each target. What was broken is the share of the images that an
    attempt met, by the lower end of its interval: later attempts meet few.
    """
    y, batches = data.y.cpu().numpy(), -(-len(data) // int(folder.plan()["batch"]))

    def rank(index: int) -> tuple[bool, bool, bool, float]:
        parts = [folder.batch(index, number) for number in range(batches)]
        right = np.concatenate([part.defended == y[part.rows] for part in parts if part is not None])
        share = wilson(int((~right).sum()), len(right))[0] if len(right) else 0.0
        attack = planned[index].attack
        targeted = getattr(attack, "loss", "") in TARGETED
        return planned[index].protocol not in ADAPTIVE, not isinstance(attack, APGD), targeted, -share

    able = sorted((index for index, one in enumerate(planned) if _variable(one)), key=rank)
    views: dict[tuple[str, float], Attempt] = {}
    for index in able:
        views.setdefault((planned[index].sight, planned[index].scale), planned[index])
    return tuple(views.values())


def _variable(attempt: Attempt) -> bool:
    names = _names(attempt.attack)
    return {"eps", "steps"} <= names and attempt.protocol not in ("auxiliary-aware", "black-box")


def _names(attack: Attack) -> set[str]:
    return {field.name for field in fields(attack)}  # type: ignore[arg-type]


def varied(attack: Attack, **changes: Any) -> Attack:
    """The attack with other settings; a step keeps its share of the radius."""
    missing = set(changes) - _names(attack)
    if missing:
        raise ImpossibleError(f"{type(attack).__name__} has no {min(missing)} to vary")
    if "eps" in changes and "step_size" in _names(attack):
        changes["step_size"] = attack.step_size * changes["eps"] / attack.eps  # type: ignore[attr-defined]
    made: Attack = replace(attack, **changes)  # type: ignore[type-var]
    return made


def by_margin(attack: Attack) -> Attack:
    """The attack on the margin, which needs no more than two classes; as it is where it has no loss to choose."""
    return varied(attack, loss="margin") if "loss" in _names(attack) else attack


def from_one_start(attack: Attack) -> Attack:
    """The attack without restarts, for what they do not bear on; as it is where it has none."""
    return varied(attack, restarts=1) if "restarts" in _names(attack) else attack
