"""Claims about the purifier's settings: its steps, its radius, and the loss of rotation prediction."""

import math
from collections.abc import Iterator, Mapping

from soap import recipes
from soap.attacks import PGD
from soap.errors import InputError
from soap.evaluation import PAPER, swept
from soap.paper.figures import TASKS
from soap.paper.pieces import Swept
from soap.paper.verdicts.findings import Findings
from soap.paper.verdicts.parts import Check, Part
from soap.paper.verdicts.wording import images, lacking_piece, percent, radius, task_of
from soap.results import Row

CLEARLY = 1.0
"""Points."""
OVER = 1.5
"""Slightly larger: at most so many times the attack's radius."""
ROTATION = "cifar10-resnet18-rp"


def fewer_steps(findings: Findings) -> Iterator[Part]:
    """The model's own steps against smaller ones that reach as far."""
    for model in TASKS:
        rows = swept.by_steps(findings.material.rows, model)
        own = recipes.read(model).purifier
        if own is None:
            raise InputError(f"{model} has no purifier, want a model of SOAP.")
        few = _near(rows, own.step_size, own.steps)
        for factor in (2, 4):
            many = _near(rows, own.step_size / factor, own.steps * factor)
            if few is None or many is None:
                yield lacking_piece(Swept("steps", model))
                continue
            words = f"{percent(few):.2f} with {own.steps} steps, {percent(many):.2f} with {own.steps * factor} "
            words += f"steps of 1/{factor} the size{images(few)}"
            yield Part(held=percent(few) >= percent(many) + CLEARLY, subject=task_of(model), words=words)


def _near(rows: Mapping[tuple[float, int], Row], gamma: float, steps: int) -> Row | None:
    return next((row for (own, count), row in rows.items() if math.isclose(own, gamma) and count == steps), None)


def larger_radius(findings: Findings) -> Iterator[Part]:
    """The attack's own radius for all images against slightly larger ones."""
    for model in TASKS:
        rows = {key: row for key, row in swept.by_radius(findings.material.rows, model).items() if key is not None}
        attack = _attack_radius(model)
        exact = next((row for own, row in rows.items() if math.isclose(own, attack)), None)
        over = {own: row for own, row in rows.items() if own > attack and not math.isclose(own, attack)}
        over = {own: row for own, row in over.items() if own <= OVER * attack or math.isclose(own, OVER * attack)}
        if exact is None or not over:
            yield lacking_piece(Swept("radii", model))
            continue
        best = max(over, key=lambda own: over[own].accuracy)
        words = f"{percent(exact):.2f} at {radius(attack, attack)}, at best {percent(over[best]):.2f} slightly above, "
        words += f"at {radius(best, attack)}{images(exact)}"
        yield Part(held=percent(over[best]) >= percent(exact) + CLEARLY, subject=task_of(model), words=words)


def rotation_loss(findings: Findings) -> Iterator[Part]:
    """Under PGD: the radius that cross entropy chooses, and the accuracy with either loss."""
    rows = swept.by_rotation_loss(findings.material.rows, ROTATION)
    squared, entropy = (rows.get(("pgd", loss)) for loss in ("squared error", "cross entropy"))
    if squared is None or entropy is None:
        yield lacking_piece(Swept("rotation", ROTATION))
        return
    attack, chosen = _attack_radius(ROTATION), entropy.measures["mean_eps_pfy"]
    words = f"cross entropy chooses {radius(chosen, attack)} on average, the attack {radius(attack, attack)}"
    yield Part(held=chosen < attack, words=words)
    words = f"under PGD {percent(squared):.2f} by squared error, {percent(entropy):.2f} by cross entropy"
    yield Part(held=percent(squared) >= percent(entropy) + CLEARLY, words=words + images(squared))


def _attack_radius(model: str) -> float:
    attack = PAPER[recipes.read(model).data]["pgd"]
    if not isinstance(attack, PGD):
        raise InputError(f"the paper's PGD for {model} is {attack!r}, want a PGD.")
    return attack.eps


ABLATIONS: dict[str, Check[Findings]] = {
    "over-estimation-helps": Check(
        rule=f"under PGD the best radius above the attack's, up to {OVER:g} times it, is at least {CLEARLY:g} point "
        "better than the attack's own",
        parts=larger_radius,
    ),
    "squared-error-for-rotation": Check(
        rule="under PGD the mean radius by cross entropy is below the attack's, and squared error at least "
        f"{CLEARLY:g} point better",
        parts=rotation_loss,
    ),
    "few-large-steps": Check(
        rule=f"under PGD the paper's steps are at least {CLEARLY:g} point better than twice and four times as many of "
        "half and a quarter the size",
        parts=fewer_steps,
    ),
}
