"""A copy of the defence with a weakness that is known to be there: an attack that misses it, misses others (check 16).

After the binarisation test of Zimmermann et al. (2022). Of every image the decision is replaced by another of two
classes: a linear reading of the same network's logits, after the same purifier, with a threshold. The reading and the
threshold are such that the image itself and random points inside the ball are on one side, and a point on the ball's
surface is on the other: a guaranteed adversarial example. To find one, an attack must come through purifier and network
just as it has to with the true decision, so whatever hides the gradient there hides it here.

The authors retrain the last layer on the penultimate features of each image. Here the logits are the features, since
of a foreign module they are all that is known, and the reading is the difference between the surface point's and the
image's: one layer later, no training. Of the surface points tried the one that stands out most is planted. What random
points find stands beside what the attack finds: the test is only as hard as that share is small.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.attacks.noise import Noise
from soap.balls import Ball
from soap.defence import Defence
from soap.evaluation.adaptive.probes.nearest import Nearest
from soap.evaluation.adaptive.probes.subject import ImpossibleError, Subject, by_margin, seen
from soap.evaluation.adaptive.target import Target
from soap.shapes import Float, Tensor

INSIDE, SURFACE = 8, 16
"""Random points tried for each image: those that must stay, and those of which one is planted."""

DEEP = 0.9
"""Where the threshold lies between the highest reading inside (0) and the planted point's (1): deep, so that random
points hardly ever cross it."""

SEPARATE = 1e-3
"""The planted point's reading must exceed the others' by this share of its own, lest rounding decide."""


def planted_weakness(subject: Subject) -> dict[str, Any]:
    """On how many images with a planted weakness the attacks find one, each on what the ones before left."""
    x = subject.x
    if not subject.ranked:
        raise ImpossibleError("no attempt of this suite goes by gradient steps")
    plant = _plant(subject)
    target = _planted(subject.target, plant)
    zero = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    everyone = torch.arange(len(x), device=x.device)
    holds = plant.works & ~_crossed(subject, plant, x, everyone) & _crossed(subject, plant, plant.point, everyone)
    rows = holds.nonzero()[:, 0]
    if len(rows) == 0:
        raise ImpossibleError("the logits do not answer to points of the ball: no weakness could be planted")
    standing, made = rows, []
    for attempt in subject.ranked:
        if len(standing):
            made.append(f"{by_margin(attempt.attack)!r} on {attempt.sight}")
            points = subject.strike(
                by_margin(attempt.attack), seen(target, attempt), x[standing], zero[standing], salt=len(made)
            )
            standing = standing[~_crossed(subject, plant, points, standing)]
    blind = Noise(eps=subject.threat.eps, norm=subject.threat.norm, draws=SURFACE)
    by_chance = subject.strike(blind, target.defended, x[rows], zero[rows], salt=17)
    return {
        "images": len(x),
        "planted": len(rows),
        "broken": len(rows) - len(standing),
        "by_chance": int(_crossed(subject, plant, by_chance, rows).sum()),
        "attacks": made,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Plant:
    """Of every image: the reading of its logits, where it crosses over, a point beyond, and whether that is so."""

    nearest: Nearest
    reading: Float[Tensor, "n classes"]
    threshold: Float[Tensor, "n"]
    point: Float[Tensor, "n *shape"]
    works: Tensor


class PlantedReading(nn.Module):
    """`model` with the planted decision: class 1 beyond the threshold of the nearest image, else class 0."""

    def __init__(self, model: nn.Module, plant: Plant) -> None:
        super().__init__()
        self.model, self.plant = model, plant

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch 2"]:
        """Two logits, half the distance to the threshold and its negative."""
        rows = self.plant.nearest(x)
        read = (self.model(x) * self.plant.reading[rows]).sum(1) - self.plant.threshold[rows]
        return torch.stack([-read, read], 1) / 2


def _plant(subject: Subject) -> Plant:
    x, ball = subject.x, subject.ball
    generator = torch.Generator(x.device).manual_seed(subject.seed)

    def inside() -> Tensor:
        return (x + ball.random_start(x, generator)).clamp(0, 1)

    centre = _logits(subject, x)
    within = torch.stack([_logits(subject, inside()) for _ in range(INSIDE)]) - centre
    best = Plant(
        nearest=Nearest(x=x, norm=subject.threat.norm),
        reading=torch.zeros_like(centre),
        threshold=torch.zeros_like(centre[:, 0]),
        point=x.clone(),
        works=torch.zeros(len(x), dtype=torch.bool, device=x.device),
    )
    lead = best.threshold.clone()
    for _ in range(SURFACE):
        point = _on_surface(x, ball, generator)
        away = _logits(subject, point) - centre
        length = away.norm(dim=1).clamp_min(1e-30)
        reading = away / length[:, None] / length[:, None]  # the planted point reads 1 more than the image
        rest = (within * reading).sum(2).amax(0).clamp_min(0)
        better = (1 - rest > torch.maximum(lead, torch.full_like(lead, SEPARATE))) & (length > 1e-6)
        threshold = (centre * reading).sum(1) + rest + DEEP * (1 - rest)
        lead = torch.where(better, 1 - rest, lead)
        best = Plant(
            nearest=best.nearest,
            reading=torch.where(better[:, None], reading, best.reading),
            threshold=torch.where(better, threshold, best.threshold),
            point=torch.where(better.reshape(-1, *[1] * (x.ndim - 1)), point, best.point),
            works=best.works | better,
        )
    return best


def _on_surface(x: Tensor, ball: Ball, generator: torch.Generator) -> Tensor:
    """A random point whose every coordinate (L2: whose length) is as far as the ball allows, inside [0, 1]."""
    way = ball.steepest(torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype))
    return (x + ball.project(way * ball.eps)).clamp(0, 1)


def _planted(target: Target, plant: Plant) -> Target:
    """The target with the planted decision behind the same purifier."""
    if target.bare is not None and target.purify is not None:
        bare = PlantedReading(target.bare, plant)
        return replace(target, bare=bare, defended=Defence(bare, target.purify))
    whole = PlantedReading(target.defended, plant)
    return replace(target, defended=whole, bare=whole if target.bare is not None else None)


def _logits(subject: Subject, x: Tensor) -> Tensor:
    """What the true defence answers, finite."""
    with isolated(subject.target.defended), torch.no_grad():
        parts: list[Tensor] = [subject.target.defended(part).float() for part in torch.split(x, subject.batch)]
    return torch.cat(parts).nan_to_num()


def _crossed(subject: Subject, plant: Plant, x: Tensor, rows: Tensor) -> Tensor:
    """Which points lie beyond the threshold of their own image, by the true defence's logits: no copy is believed."""
    return (_logits(subject, x) * plant.reading[rows]).sum(1) > plant.threshold[rows]
