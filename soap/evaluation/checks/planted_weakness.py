"""Check 16: the attacks find a weakness that is known to exist.

After the binarisation test of Zimmermann et al. (2022). For every image the decision is replaced by a two-class one: a
linear function of the same network's logits, after the same purifier, with a threshold. Function and threshold are
chosen such that the image and random points inside the ball are on one side and a point on the ball's surface is on
the other: a guaranteed adversarial example. An attack must pass purifier and network to find it, as with the original
decision, so whatever hides the gradient there hides it here.

The authors retrain the last layer on the penultimate features of each image. Here the logits are the features, because
nothing else is known of a user's module, and the linear function is the difference between the logits of the surface
point and of the image: one layer later, without training. Of the surface points tried, the most distinct is planted.
The share that random points find is reported as well: the test is only as hard as that share is small.
"""

from dataclasses import dataclass

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.attacks.noise import Noise
from soap.defence import DEFENDED, Defence
from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, Measurement, percent
from soap.evaluation.checks.context import (
    ImpossibleError,
    MeasurementContext,
    Nearest,
    attack_text,
    varied_if_possible,
)
from soap.evaluation.protocols import DEFAULT_EFFORT, SURROGATE
from soap.shapes import Float, Tensor

INSIDE_POINTS, SURFACE_POINTS = 8, 16
"""Random points tried for each image: those that must keep the class, and those of which one is planted."""

THRESHOLD_DEPTH = 0.9
"""Threshold between the highest value inside (0) and the planted point's (1); high, so that random points fail."""

MIN_LEAD = 1e-3
"""The planted point's value must exceed the others by this share of its own, more than rounding."""

MIN_FOUND = 0.95


@dataclass(frozen=True, kw_only=True)
class PlantedWeakness:
    """Images with a planted weakness, those that the attacks broke, and those that random points broke."""

    images: int
    planted: int
    broken: int
    by_chance: int
    attacks: tuple[str, ...]


def measure(context: MeasurementContext) -> PlantedWeakness:
    """Attack the planted copy; each attack gets the images that survived the earlier ones."""
    if context.run.random:
        raise ImpossibleError("a random defence has no fixed decision in which a weakness could be planted")
    x, ranked = context.x, (context.strongest, *context.ranked[1:])
    plant = _plant(context)
    defence = _planted_defence(context.defence, plant)
    zero = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    everyone = torch.arange(len(x), device=x.device)
    holds = plant.works & ~_crossed(context, plant, x, everyone) & _crossed(context, plant, plant.point, everyone)
    rows = holds.nonzero()[:, 0]
    if len(rows) == 0:
        raise ImpossibleError("the logits do not change inside the ball: no weakness could be planted")
    surviving, made = rows, list[str]()
    for attempt in ranked:
        if len(surviving):
            # The other losses need more than two classes. Only images whose weakness is not found yet are restarted.
            attack = varied_if_possible(attempt.attack, loss="margin", restarts=DEFAULT_EFFORT.restarts)
            made.append(attack_text(attack, attempt))
            seen = attempt.seen(defence, context.run.imitation if attempt.rule == SURROGATE else None)
            points = context.attacked(attack, seen, x[surviving], zero[surviving], salt=len(made))
            surviving = surviving[~_crossed(context, plant, points, surviving)]
    blind = Noise(eps=context.run.threat.eps, norm=context.run.threat.norm, draws=SURFACE_POINTS)
    by_chance = context.attacked(blind, defence.seen_by(DEFENDED) or defence, x[rows], zero[rows], salt=17)
    return PlantedWeakness(
        images=len(x),
        planted=len(rows),
        broken=len(rows) - len(surviving),
        by_chance=int(_crossed(context, plant, by_chance, rows).sum()),
        attacks=tuple(made),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Plant:
    """Of every image: the linear function of its logits, the threshold, a point beyond it, and whether it works."""

    nearest: Nearest
    weights: Float[Tensor, "n classes"]
    threshold: Float[Tensor, "n"]
    point: Float[Tensor, "n *shape"]
    works: Tensor


class PlantedClassifier(nn.Module):
    """`model` with the planted decision: class 1 beyond the threshold of the nearest image, else class 0."""

    def __init__(self, model: nn.Module, plant: Plant) -> None:
        super().__init__()
        self.model, self.plant = model, plant

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch 2"]:
        """Two logits: minus and plus half the distance to the threshold."""
        rows = self.plant.nearest(x)
        value = (self.model(x) * self.plant.weights[rows]).sum(1) - self.plant.threshold[rows]
        return torch.stack([-value, value], 1) / 2


def _plant(context: MeasurementContext) -> Plant:
    x, ball = context.x, context.ball
    generator = torch.Generator(x.device).manual_seed(context.run.seed)
    centre = _logits(context, x)
    inside = [_logits(context, (x + ball.random_start(x, generator)).clamp(0, 1)) for _ in range(INSIDE_POINTS)]
    within = torch.stack(inside) - centre
    weights, threshold, points = torch.zeros_like(centre), torch.zeros_like(centre[:, 0]), x.clone()
    lead, works = torch.full_like(threshold, MIN_LEAD), torch.zeros_like(threshold, dtype=torch.bool)
    for _ in range(SURFACE_POINTS):
        way = ball.steepest(torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype))
        point = (x + ball.project(way * ball.eps)).clamp(0, 1)
        away = _logits(context, point) - centre
        length = away.norm(dim=1).clamp_min(1e-30)
        tried = away / length[:, None] / length[:, None]  # the planted point's value is 1 more than the image's
        rest = (within * tried).sum(2).amax(0).clamp_min(0)
        better = (1 - rest > lead) & (length > 1e-6)
        limit = (centre * tried).sum(1) + rest + THRESHOLD_DEPTH * (1 - rest)
        for best, new in ((lead, 1 - rest), (weights, tried), (threshold, limit), (points, point)):
            best[better] = new[better]
        works |= better
    nearest = Nearest(x=x, norm=context.run.threat.norm)
    return Plant(nearest=nearest, weights=weights, threshold=threshold, point=points, works=works)


def _planted_defence(defence: Defence, plant: Plant) -> Defence:
    """The defence with the planted decision behind the same purifier."""
    planted = PlantedClassifier(defence.model, plant)
    return Defence(planted, defence.purifier) if defence.classifier is not None else Defence.of_module(planted)


def _logits(context: MeasurementContext, x: Tensor) -> Tensor:
    """Finite logits of the original defence."""
    with isolated(context.defence), torch.no_grad():
        parts: list[Tensor] = [context.defence(part).float() for part in torch.split(x, context.run.batch_size)]
    return torch.cat(parts).nan_to_num()


def _crossed(context: MeasurementContext, plant: Plant, x: Tensor, rows: Tensor) -> Tensor:
    """Which points are beyond the threshold of their own image, by the logits of the original defence."""
    return (_logits(context, x) * plant.weights[rows]).sum(1) > plant.threshold[rows]


MEASUREMENT = Measurement("planted", PlantedWeakness, measure, quick=False)


def judge(evidence: Evidence) -> Judgement:
    """FAIL where fewer than 95 % of the planted weaknesses are found."""
    found = evidence.record(MEASUREMENT)
    share = found.broken / found.planted
    measured = f"{percent(share)} of {found.planted} images with a planted weakness"
    measured += f", random points {percent(found.by_chance / found.planted)}"
    if share < MIN_FOUND:
        return FAIL, measured, "The attack misses adversarial examples that exist, so surviving images prove nothing."
    return PASS, measured, "The attack finds weaknesses that are known to exist."


CHECKS = (Check(16, "planted weakness found", judge, (MEASUREMENT,)),)
