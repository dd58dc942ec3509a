"""Claims about sweeps: beta of the auxiliary-aware attack (Figure 5), and the purifier's steps, radius and loss."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from soap import recipes
from soap.attacks import PGD
from soap.errors import InputError
from soap.evaluation import PAPER
from soap.paper import row_queries
from soap.paper.claims.checks import (
    ClaimCheck,
    ClaimEvidence,
    ClaimPart,
    images_text,
    percent,
    radius_text,
    undecided,
)
from soap.paper.figure_inputs import SweepInput
from soap.paper.figure_list import TASKS
from soap.paper.model_names import method_of
from soap.paper.sweeps import BETAS
from soap.results import Row

CLEAR_POINTS, SIMILAR_POINTS = 1.0, 3.0
"""A clear difference is at least the first; similar numbers differ by at most the second."""
MAX_OVERESTIMATE = 1.5
"""A slightly larger radius is at most so many times the attack's."""
DR, RP, LC = TASKS
NEGATIVE_BETAS = sorted((beta for beta in BETAS if beta <= 0), reverse=True)
POSITIVE_BETAS = sorted(beta for beta in BETAS if beta >= 0)

RowsByBeta = Mapping[tuple[float, bool], Row]
"""By (beta, purified)."""


def knowing_attacker(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Accuracy after purification at the worst beta against that under plain PGD."""
    for model in TASKS:
        rows = _complete(evidence, model)
        if rows is None:
            yield undecided(SweepInput("betas", model))
            continue
        after = {beta: percent(rows[beta, True]) for beta in BETAS}
        worst = min(BETAS, key=lambda beta: after[beta])
        held = after[worst] >= after[0.0] - SIMILAR_POINTS
        words = f"{after[0.0]:.2f} at beta 0, at worst {after[worst]:.2f} at beta {worst:g}"
        yield ClaimPart(held=held, subject=method_of(model), words=words + images_text(rows[0.0, True]))


def negative_beta(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Accuracy before and after purification as beta falls from 0."""
    for model in TASKS:
        yield from _rising(evidence, model, NEGATIVE_BETAS, {"before": False, "after": True})


def positive_beta(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Accuracy after purification as beta rises from 0."""
    for model in (DR, LC):
        yield from _rising(evidence, model, POSITIVE_BETAS, {"after": True})


def _rising(
    evidence: ClaimEvidence, model: str, betas: Sequence[float], sides: Mapping[str, bool]
) -> Iterator[ClaimPart]:
    rows = _complete(evidence, model)
    if rows is None:
        yield undecided(SweepInput("betas", model))
        return
    for side, purified in sides.items():
        values = [percent(rows[beta, purified]) for beta in betas]
        fall = max(before - after for before, after in pairwise(values))
        words = f"from {values[0]:.2f} to {values[-1]:.2f} {side} purification"
        words += f", falling by {fall:.2f} in between" if fall > CLEAR_POINTS else ""
        held = values[-1] >= values[0] + CLEAR_POINTS and fall <= CLEAR_POINTS
        yield ClaimPart(held=held, subject=method_of(model), words=words + images_text(rows[0.0, True]))


def constant_accuracy(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Accuracy of rotation prediction after purification for every positive beta."""
    rows = _complete(evidence, RP)
    if rows is None:
        yield undecided(SweepInput("betas", RP))
        return
    plain, *values = (percent(rows[beta, True]) for beta in POSITIVE_BETAS)
    held = max(abs(value - plain) for value in values) <= SIMILAR_POINTS
    words = f"{plain:.2f} at beta 0, from {min(values):.2f} to {max(values):.2f} above it"
    yield ClaimPart(held=held, subject=method_of(RP), words=words + images_text(rows[0.0, True]))


def _complete(evidence: ClaimEvidence, model: str) -> RowsByBeta | None:
    """The model's sweep over beta; None if a beta was not measured."""
    rows = row_queries.by_beta(evidence.figure_data.rows, model)
    return rows if all((beta, purified) in rows for beta in BETAS for purified in (False, True)) else None


def fewer_steps(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """The model's own steps against more and smaller steps of the same total length."""
    for model in TASKS:
        rows = row_queries.by_steps(evidence.figure_data.rows, model)
        own = recipes.read(model).purifier
        if own is None:
            raise InputError(f"{model} has no purifier, want a model of SOAP.")
        few = _near(rows, own.step_size, own.steps)
        for factor in (2, 4):
            many = _near(rows, own.step_size / factor, own.steps * factor)
            if few is None or many is None:
                yield undecided(SweepInput("steps", model))
                continue
            words = f"{percent(few):.2f} with {own.steps} steps, {percent(many):.2f} with {own.steps * factor} "
            words += f"steps of 1/{factor} the size{images_text(few)}"
            yield ClaimPart(held=percent(few) >= percent(many) + CLEAR_POINTS, subject=method_of(model), words=words)


def _near(rows: Mapping[tuple[float, int], Row], gamma: float, steps: int) -> Row | None:
    return next((row for (own, count), row in rows.items() if math.isclose(own, gamma) and count == steps), None)


def larger_radius(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """The attack's radius for all images against slightly larger ones."""
    for model in TASKS:
        rows = {
            key: row for key, row in row_queries.by_radius(evidence.figure_data.rows, model).items() if key is not None
        }
        attack = _attack_radius(model)
        exact = next((row for own, row in rows.items() if math.isclose(own, attack)), None)
        over = {own: row for own, row in rows.items() if own > attack and not math.isclose(own, attack)}
        over = {
            own: row
            for own, row in over.items()
            if own <= MAX_OVERESTIMATE * attack or math.isclose(own, MAX_OVERESTIMATE * attack)
        }
        if exact is None or not over:
            yield undecided(SweepInput("radii", model))
            continue
        best = max(over, key=lambda own: over[own].accuracy)
        words = (
            f"{percent(exact):.2f} at {radius_text(attack, attack)}, at best {percent(over[best]):.2f} slightly above, "
        )
        words += f"at {radius_text(best, attack)}{images_text(exact)}"
        yield ClaimPart(
            held=percent(over[best]) >= percent(exact) + CLEAR_POINTS, subject=method_of(model), words=words
        )


def rotation_loss(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Under PGD: the radius that cross entropy chooses, and the accuracy with each loss."""
    rows = row_queries.by_rotation_loss(evidence.figure_data.rows, RP)
    squared, entropy = (rows.get(("pgd", loss)) for loss in ("squared error", "cross entropy"))
    if squared is None or entropy is None:
        yield undecided(SweepInput("rotation", RP))
        return
    attack, chosen = _attack_radius(RP), entropy.measures["mean_eps_pfy"]
    words = f"cross entropy chooses {radius_text(chosen, attack)} on average, the attack {radius_text(attack, attack)}"
    yield ClaimPart(held=chosen < attack, words=words)
    words = f"under PGD {percent(squared):.2f} by squared error, {percent(entropy):.2f} by cross entropy"
    yield ClaimPart(held=percent(squared) >= percent(entropy) + CLEAR_POINTS, words=words + images_text(squared))


def _attack_radius(model: str) -> float:
    attack = PAPER[recipes.read(model).data]["pgd"]
    if not isinstance(attack, PGD):
        raise InputError(f"the paper's PGD for {model} is {attack!r}, want a PGD.")
    return attack.eps


SWEEP_CLAIMS: dict[str, ClaimCheck[ClaimEvidence]] = {
    "knowing-the-task-does-not-pay": ClaimCheck(
        rule=f"no beta leaves more than {SIMILAR_POINTS:g} points less after purification than plain PGD (beta 0)",
        parts=knowing_attacker,
    ),
    "negative-beta-weakens": ClaimCheck(
        rule=f"before and after purification: at least {CLEAR_POINTS:g} point higher at beta -100 than at 0, and no "
        f"fall by more than {CLEAR_POINTS:g} point from one beta to the next",
        parts=negative_beta,
    ),
    "positive-beta-rises": ClaimCheck(
        rule=f"after purification: at least {CLEAR_POINTS:g} point higher at beta 100 than at 0, and no fall by more "
        f"than {CLEAR_POINTS:g} point from one beta to the next",
        parts=positive_beta,
    ),
    "positive-beta-stays": ClaimCheck(
        rule=f"within {SIMILAR_POINTS:g} points of plain PGD (beta 0) after purification, for every positive beta",
        parts=constant_accuracy,
    ),
    "over-estimation-helps": ClaimCheck(
        rule=f"under PGD the best radius above the attack's, up to {MAX_OVERESTIMATE:g} times it, is at least "
        f"{CLEAR_POINTS:g} point better than the attack's own",
        parts=larger_radius,
    ),
    "squared-error-for-rotation": ClaimCheck(
        rule="under PGD the mean radius by cross entropy is below the attack's, and squared error at least "
        f"{CLEAR_POINTS:g} point better",
        parts=rotation_loss,
    ),
    "few-large-steps": ClaimCheck(
        rule=f"under PGD the paper's steps are at least {CLEAR_POINTS:g} point better than twice and four times as "
        "many of half and a quarter the size",
        parts=fewer_steps,
    ),
}
