"""What a measurement gets: the defence, a few images, and the strongest attempts of the run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from soap._runtime import seeding
from soap.attacks import APGD, Attack
from soap.attacks.losses import TARGETED
from soap.balls import BALLS, Ball
from soap.defence import Defence
from soap.errors import InputError
from soap.evaluation.attempts import seeded, seeded_attack
from soap.evaluation.labels import predicted_labels
from soap.evaluation.paired import Images
from soap.evaluation.plan import PlannedRun
from soap.evaluation.protocols import CLASSIFIER, EXTRA, FEW_DRAWS, QUERIES_ONLY, RULES, Attempt
from soap.evaluation.summary import Summary
from soap.gradient_rules import with_finite_logits
from soap.results import wilson
from soap.shapes import Float, Int, Tensor
from soap.specs import call_text, spec_of

MAX_IMAGES, HEADLINE_IMAGES = 100, 32
"""Images of each measurement, and in the headline mode of those that do not attack surviving images."""


class ImpossibleError(Exception):
    """A measurement does not apply to this defence; the message gives the reason and becomes a finding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Survivors:
    """Images and labels that the attempts did not break; of a random defence, those that some draw still classifies.

    accuracy: of every image after all attempts, by the draws that report; selected: by those that select. share: the
    share of all images that one of these represents, so that a sum becomes a change of accuracy.
    """

    x: Float[Tensor, "m *shape"]
    y: Int[Tensor, "m"]
    accuracy: Float[Tensor, "m"]
    selected: Float[Tensor, "m"]
    share: float


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasurementContext:
    """x, y: the first images that the defence classifies correctly. surviving: images that no attempt broke.

    ranked: attempts with gradient steps, strongest first, one for each gradient rule. made: attempts that attacked an
    image. falls: of `Summary`. left: accuracy on x after the protocol of the strongest. clean: the first images of the
    data with the labels that the run stored for them. memory: results that several measurements share.
    """

    run: PlannedRun
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, "n"]
    surviving: Survivors
    ranked: tuple[Attempt, ...]
    made: tuple[Attempt, ...]
    falls: Mapping[int, Images]
    left: float
    clean: tuple[Float[Tensor, "c *shape"], Int[Tensor, "c"]]
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def defence(self) -> Defence:
        """The defence of the run."""
        return self.run.defence

    @property
    def strongest(self) -> Attempt:
        """The attempt that measurements vary."""
        if not self.ranked:
            raise ImpossibleError("no attempt of this suite uses gradient steps")
        return self.ranked[0]

    @property
    def ball(self) -> Ball:
        """The ball of the threat."""
        return BALLS[self.run.threat.norm](self.run.threat.eps)

    @property
    def model(self) -> nn.Module:
        """The defence as the strongest attempt sees it."""
        return self.run.seen(self.strongest)

    def few(self, n: int) -> tuple[Tensor, Tensor]:
        """The first `n` images and labels."""
        return self.x[:n], self.y[:n]

    def attacked(self, attack: Attack, model: nn.Module, x: Tensor, y: Tensor, *, salt: int = 0) -> Tensor:
        """The images after the attack, batch by batch. salt: distinguishes the seeds of measurements."""
        parts = []
        for number, (part, labels) in enumerate(self.batches(x, y)):
            seed = seeding.seed_for(self.run.seed, salt, number * self.run.batch_size)
            with seeded_attack(self.defence, seed, random=self.run.random):
                parts.append(seeded(attack, seed)(with_finite_logits(model, part), part, labels))
        return torch.cat(parts) if parts else x

    def batches(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels in batches of the run's size."""
        size = self.run.batch_size
        return zip(torch.split(x, size), torch.split(y, size), strict=True) if len(x) else iter(())

    def correct(self, x: Tensor, y: Tensor) -> Tensor:
        """Which images the whole defence classifies as `y`; a random one by majority vote."""
        return self._labels(x, y)[0] == y

    def broken_survivors(self, attack: Attack, model: nn.Module, *, salt: int) -> tuple[int, float, float]:
        """Attack all surviving images: how many are worse then, the change of accuracy, its standard error.

        Of a random defence, one set of draws decides whether an image is worse, and another tells by how much.
        """
        before, k = self.surviving, self.run.evaluation_draws
        if len(before.x) == 0:
            return 0, 0.0, 0.0
        labels, drawn = self._labels(self.attacked(attack, model, before.x, before.y, salt=salt), before.y, salt)
        if k == 1:
            worse = int((labels != before.y).sum())
            return worse, worse * before.share, 0.0
        right = (drawn == before.y[:, None]).double()
        chosen = right[:, :k].mean(1) < before.selected
        drop = torch.where(chosen, before.accuracy - right[:, k:].mean(1), 0.0)
        error = float(drop.std()) * math.sqrt(len(drop)) * before.share if len(drop) > 1 else 0.0
        return int(chosen.sum()), float(drop.sum()) * before.share, error

    def _labels(self, x: Tensor, y: Tensor, salt: int = 0) -> tuple[Tensor, Tensor]:
        parts = [
            predicted_labels(
                self.defence, part, draws=self.run.evaluation_draws, seed=(self.run.seed, -2, salt, number)
            )
            for number, (part, _) in enumerate(self.batches(x, y))
        ]
        if not parts:
            return y, y[:, None]
        return torch.cat([one.defended for one in parts]), torch.cat([one.drawn for one in parts])


def measurement_context(run: PlannedRun, summary: Summary, *, max_images: int) -> MeasurementContext:
    """The context of a run whose attempts are done, with at most `max_images` images of each kind."""
    if len(summary.done) < len({one.protocol for one in run.attempts}):
        raise InputError("the attempts of this run are not done; finish run_attempts before run_measurements.")
    rows = np.flatnonzero(summary.clean.defended)[: min(max_images, HEADLINE_IMAGES) if run.headline else max_images]
    worst = summary.worst
    selected = worst.values if worst.selected is None else worst.selected
    surviving = np.flatnonzero(selected > 0)
    tried = surviving[:max_images]
    order = ranked_attempts(run.attempts, summary)
    strongest = summary.protocol(order[0].protocol) if order else None
    left = np.ones(len(rows)) if strongest is None else strongest.values[rows]
    first = np.arange(min(max_images, len(run.data)))
    (x, y), some = run.data_at(rows), run.data_at(tried)
    return MeasurementContext(
        run=run,
        x=x,
        y=y,
        surviving=Survivors(
            x=some[0],
            y=some[1],
            accuracy=torch.from_numpy(worst.values[tried]).to(x.device),
            selected=torch.from_numpy(selected[tried]).to(x.device),
            share=len(surviving) / max(1, len(tried)) / len(run.data),
        ),
        ranked=order,
        made=tuple(one for index, one in enumerate(run.attempts) if summary.broken.get(index, (0, 0))[0]),
        falls=summary.falls,
        left=float(left.mean()) if len(rows) else 0.0,
        clean=(run.data_at(first)[0], torch.from_numpy(summary.clean_labels[first]).to(x.device)),
    )


def ranked_attempts(attempts: Sequence[Attempt], summary: Summary) -> tuple[Attempt, ...]:
    """Attempts with gradient steps: adaptive ones first, APGD first among them, then by the share they broke.

    Targeted losses come last, because they cost a run for each target. The share is of the images that an attempt
    attacked, by the lower end of its interval: later attempts attack few.
    """

    def rank(index: int) -> tuple[bool, bool, bool, bool, float]:
        met, broken = summary.broken.get(index, (0, 0))
        share = wilson(broken, met)[0] if met else 0.0
        one = attempts[index]
        targeted = getattr(one.attack, "loss", "") in TARGETED
        # Measurements repeat an attack often: of those that average over draws, the one with few.
        return one.protocol not in RULES, not isinstance(one.attack, APGD), targeted, one.draws > FEW_DRAWS, -share

    able = [
        index
        for index, one in enumerate(attempts)
        if {"eps", "steps"} <= _setting_names(one.attack)
        and one.protocol not in ("auxiliary-aware", *QUERIES_ONLY, CLASSIFIER, EXTRA)
    ]
    if any(attempts[index].draws > 1 for index in able):
        able = [index for index in able if attempts[index].draws > 1 or attempts[index].protocol not in RULES]
    views: dict[tuple[str, float], Attempt] = {}
    for index in sorted(able, key=rank):
        views.setdefault((attempts[index].rule, attempts[index].scale), attempts[index])
    return tuple(views.values())


def _setting_names(attack: Attack) -> set[str]:
    return {each.name for each in fields(attack)} if is_dataclass(attack) else set()


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
    scale, draws = attempt.step.scale, attempt.draws
    text = attack_text(attempt.attack, attempt) + ("" if scale is None else f", scale={scale:g}")
    return text + (f", {draws} draws" if draws > 1 else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearest:
    """Finds the image of `x` that a point belongs to: the nearest in `norm`. Attacks drop and reorder samples.

    Correct where the balls around the images do not overlap: for images farther apart than twice the radius.
    """

    x: Float[Tensor, "n *shape"]
    norm: str

    def __call__(self, points: Float[Tensor, "batch *shape"]) -> Int[Tensor, "batch"]:
        """The number of the nearest image of each point."""
        p = {"linf": torch.inf, "l2": 2.0, "l1": 1.0}[self.norm]
        with torch.no_grad():
            return torch.cdist(points.detach().flatten(1), self.x.flatten(1).to(points.dtype), p=p).argmin(1)
