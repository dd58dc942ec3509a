"""Checks 8, 9, 12 and 21: many steps break at least as much as one, and further iterations, restarts and draws change
accuracy by less than half a point."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from soap._runtime.isolation import isolated
from soap.attacks import APGD, Attack, DecayingPGD
from soap.attacks.losses import cross_entropy
from soap.evaluation.checks import radii
from soap.evaluation.checks.check import (
    FAIL,
    PASS,
    WARN,
    Check,
    Evidence,
    Judgement,
    Measurement,
    percent,
)
from soap.evaluation.checks.context import ImpossibleError, MeasurementContext, attempt_text, varied
from soap.evaluation.paired import Images
from soap.evaluation.plan import PlannedRun
from soap.evaluation.protocols import HALF_A_POINT, RULES, Attempt
from soap.gradient_rules import logits_and_gradient, with_finite_logits
from soap.specs import call_text, spec_of


@dataclass(frozen=True, kw_only=True)
class MoreEffort:
    """A stronger attack on images that survived every attempt: how many it broke, and the change of accuracy.

    error: the standard error of the change, of a random defence.
    """

    attack: str
    images: int
    broken: int
    moved: float
    error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MoreDraws:
    """An attempt with some draws, and with twice as many on the images it left: the change of accuracy, its error.

    random: whether the defence is; the rest is empty otherwise. broken: images whose accuracy fell.
    """

    random: bool
    attack: str = ""
    draws: int = 1
    images: int = 0
    broken: int = 0
    moved: float = 0.0
    error: float = 0.0


def measure(context: MeasurementContext, setting: str, salt: int) -> MoreEffort:
    """The strongest attack with twice the `setting`, on surviving images.

    Restarts have another seed than in the suite, in which these images survived as many: together they are twice.
    """
    attack = context.strongest.attack
    if setting == "steps" or not isinstance(attack, APGD | DecayingPGD):
        attack = varied(attack, **{setting: 2 * getattr(attack, setting, 1)})
    broken, moved, error = context.broken_survivors(attack, context.model, salt=salt)
    images = len(context.surviving.x)
    return MoreEffort(attack=call_text(spec_of(attack)), images=images, broken=broken, moved=moved, error=error)


def measure_draws(context: MeasurementContext) -> MoreDraws:
    """The suite's own last doubling of the draws; without one, an attack on surviving images with twice the draws."""
    if not context.run.random:
        return MoreDraws(random=context.defence.probe(context.x).random)
    attempt = most_draws(context)
    if (doubled := last_doubling(context.run, context.falls)) is not None:
        return doubled
    twice = replace(attempt, draws=2 * attempt.draws)
    broken, moved, error = context.broken_survivors(twice.attack, context.run.seen(twice), salt=21)
    return MoreDraws(
        random=True,
        attack=attempt_text(twice),
        draws=attempt.draws,
        images=len(context.surviving.x),
        broken=broken,
        moved=moved,
        error=error,
    )


def last_doubling(run: PlannedRun, by_attempt: Mapping[int, Images]) -> MoreDraws | None:
    """By how much the last attempt with twice the draws of an earlier one changed accuracy; None without one.

    Of every image, the last such attempt that attacked its batch counts: later ones leave out batches that converged.
    by_attempt: `Summary.falls`.
    """
    falls, last, known = np.full(len(run.data), np.nan), None, set[tuple[str, Attack, int]]()
    for number, one in enumerate(run.attempts):
        if number in by_attempt:
            if (one.rule, one.attack, one.draws // 2) in known and one.draws % 2 == 0:
                falls, last = np.where(np.isnan(by_attempt[number]), falls, by_attempt[number]), one
            known.add((one.rule, one.attack, one.draws))
    if last is None:
        return None
    fell, n = falls[~np.isnan(falls)], len(falls)
    return MoreDraws(
        random=True,
        attack=attempt_text(last),
        draws=last.draws // 2,
        images=len(fell),
        broken=int((fell > 0).sum()),
        moved=float(fell.sum()) / n,
        error=float(fell.std(ddof=1)) * math.sqrt(len(fell)) / n if len(fell) > 1 else 0.0,
    )


def most_draws(context: MeasurementContext) -> Attempt:
    """The adaptive attempt with most draws that was made; of several, that of the probability or of the margin."""
    stepping = [one for one in context.made if isinstance(one.attack, APGD | DecayingPGD)]
    able = [one for one in stepping if one.protocol in RULES]
    able = able or [one for one in stepping if one.protocol == "transfer"]
    if not able:
        raise ImpossibleError("no adaptive attempt of this suite uses gradient steps")
    return max(able, key=lambda one: (one.draws, getattr(one.attack, "loss", "") != "ce"))


STEPS = Measurement("doubled-steps", MoreEffort, partial(measure, setting="steps", salt=8), quick=False)
RESTARTS = Measurement("doubled-restarts", MoreEffort, partial(measure, setting="restarts", salt=9), quick=False)
DRAWS = Measurement("eot", MoreDraws, measure_draws, quick=False)


def judge(evidence: Evidence, measurement: Measurement[MoreEffort], what: str) -> Judgement:
    """WARN where twice the effort breaks more."""
    found = evidence.record(measurement)
    measured = f"accuracy moves by {100 * found.moved:.2f} points ({found.broken} of {found.images} survivors broken)"
    if breaks_more(found):
        return WARN, measured, f"Twice the {what} break more images: the attack has not converged. Use more."
    return PASS, measured, f"Twice the {what} change little."


def judge_draws(evidence: Evidence) -> Judgement:
    """FAIL where a random defence was attacked by one draw at a time, WARN where more draws break more."""
    found = evidence.record(DRAWS)
    if not found.random:
        return PASS, "deterministic", "The defence is deterministic: there is nothing to average over."
    if found.draws == 1:
        return FAIL, "1 draw", "The defence is random, and every gradient saw a single draw: average over several."
    moved = f"accuracy moves by {100 * found.moved:.2f} points (standard error {100 * found.error:.2f})"
    measured = f"{moved} from {found.draws} to {2 * found.draws} draws, {found.images} images"
    if breaks_more(found):
        return WARN, measured, "Twice the draws break more images: give a larger number of draws."
    return PASS, measured, "Twice the draws change little."


def breaks_more(found: MoreEffort | MoreDraws) -> bool:
    """Whether accuracy changes by half a point, and by more than chance explains."""
    return found.moved >= HALF_A_POINT and found.moved > 2 * found.error


@dataclass(frozen=True, kw_only=True)
class SingleStep:
    """Accuracy after one step of the length of the radius, and after the strongest protocol, on the same images."""

    images: int
    single: float
    iterative: float
    protocol: str


def measure_single_step(context: MeasurementContext) -> SingleStep:
    """One gradient step on every image."""
    survived = 0
    for part, labels in context.batches(context.x, context.y):
        model = with_finite_logits(context.model, part)
        with isolated(model):
            _, direction = logits_and_gradient(model, part, partial(cross_entropy, y=labels))
        step = context.ball.project(context.run.threat.eps * context.ball.steepest(direction.nan_to_num()))
        survived += int(context.correct((part + step).clamp(0, 1), labels).sum())
    return SingleStep(
        images=len(context.x),
        single=survived / len(context.x),
        iterative=context.left,
        protocol=context.strongest.protocol,
    )


SINGLE_STEP = Measurement("single-step", SingleStep, measure_single_step)


def judge_single_step(evidence: Evidence) -> Judgement:
    """FAIL where one step breaks more than many."""
    found = evidence.record(SINGLE_STEP)
    if evidence.summary.headline:
        many = evidence.record(radii.MEASUREMENT)
        alone = many.at(evidence.plan["threat"]["eps"])
        measured = f"{percent(alone)} after {many.attack} alone, {percent(found.single)} after one step"
        if alone > found.single:
            return WARN, measured, "One step breaks more than the strongest attempt alone; run without headline."
        return PASS, f"{measured}, {found.images} images", "Many steps break at least as much as one."
    measured = f"{percent(found.iterative)} after {found.protocol}, {percent(found.single)} after one step"
    measured += f", {found.images} images"
    # Of a random defence, both shares vary by about half the root of the number of images.
    if found.iterative > found.single + (0.5 / math.sqrt(found.images) if evidence.plan["random"] else 0):
        return FAIL, measured, "One step breaks more than many: the gradient is wrong away from the image."
    return PASS, measured, "Many steps break at least as much as one."


CHECKS = (
    Check(8, "converged", partial(judge, measurement=STEPS, what="iterations"), (STEPS,)),
    Check(9, "restarts", partial(judge, measurement=RESTARTS, what="restarts"), (RESTARTS,)),
    Check(12, "iterative beats single-step", judge_single_step, (SINGLE_STEP,)),
    Check(21, "EOT converged", judge_draws, (DRAWS,)),
)
