"""Claims about figures and ablations; the paper prints no numbers for these."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from soap import recipes
from soap.paper.claims import ClaimPart
from soap.paper.figure_data import METHOD_NAMES, TASKS, FigureData, FigureInput, epoch_seconds, name_of
from soap.paper.figure_records import CLEAN, Examples, RadiusCurve
from soap.paper.rows import attack_radius
from soap.paper.sweeps import BETAS, CROSS_ENTROPY
from soap.results import Row

CLEAR_POINTS, SIMILAR_POINTS = 1.0, 3.0
"""A clear difference is at least the first; similar numbers differ by at most the second."""
MAX_GAP_SHARE = 0.1
"""Of the gap between the losses of attacked and clean images, the largest share that purification may leave."""
MAX_OVERESTIMATE = 1.5
"""A slightly larger radius is at most so many times the attack's."""
RELATIVE_TOLERANCE = 1e-3
"""Of the attack's radius, which is measured on the images."""

DR, RP, LC = TASKS
NEGATIVE_BETAS = sorted((beta for beta in BETAS if beta <= 0), reverse=True)
POSITIVE_BETAS = sorted(beta for beta in BETAS if beta >= 0)

SMALL = ("mnist-fcn-dr", "cifar10-resnet18-rp", "cifar10-resnet18-lc")
LARGE = ("mnist-cnn-dr", "cifar10-wide-resnet28-rp", "cifar10-wide-resnet28-lc")

RowsByBeta = Mapping[tuple[float, bool], Row]
"""By (beta, purified)."""

Compare = Callable[[str, Any], Iterator[tuple[bool, str] | None]]
"""From a model and its data: whether each comparison holds, and its numbers in words; None where data are missing."""


def figure_parts(name: str, data: FigureData) -> list[ClaimPart]:
    """The comparisons of the claim `name`, model by model."""
    kind, models, compare = FIGURE_CHECKS[name]
    parts = []
    for model in models:
        source = FigureInput(kind, model)
        found = epoch_seconds(data.timings) if kind == "timing" else data.get(kind, model)
        for result in compare(model, found) if found else (None,):
            if result is None:
                parts.append(ClaimPart(held=None, missing=((source.need, ""),)))
            else:
                parts.append(ClaimPart(held=result[0], subject=name_of(model).method, words=result[1]))
    return parts


def loss_tells_attack(model: str, curve: RadiusCurve) -> Iterator[tuple[bool, str]]:
    """Mean losses of clean, attacked and purified images."""
    least, gap = min(curve.purified), curve.adversarial - curve.clean
    losses = f"clean {curve.clean:.3g}, attacked {curve.adversarial:.3g}, purified {least:.3g}"
    yield gap > 0 and least <= curve.clean + MAX_GAP_SHARE * gap, f"{losses} ({curve.n:,} images)"


def elbow_at_attack_radius(model: str, curve: RadiusCurve) -> Iterator[tuple[bool, str]]:
    """The radius at which the loss stops falling."""
    held = 1 - RELATIVE_TOLERANCE <= curve.elbow / curve.eps_adv <= MAX_OVERESTIMATE + RELATIVE_TOLERANCE
    elbow, attack = (radius_text(value, curve.eps_adv) for value in (curve.elbow, curve.eps_adv))
    yield held, f"elbow at {elbow}, attack's radius {attack} ({curve.n:,} images)"


def decoder_output(model: str, shown: Examples) -> Iterator[tuple[bool, str]]:
    """Distance of the decoded attacked and purified digits from the decoded clean ones."""
    attacked, purified = shown.column("pgd"), shown.column("pgd", purified=True)
    seen = shown.decoded.astype(float)
    far, near = (np.square(seen[column] - seen[shown.column(CLEAN)]).sum((1, 2, 3)) for column in (attacked, purified))
    back = [shown.classes[label] for label, moved in zip(shown.truth, near < far, strict=True) if moved]
    pairs = zip(shown.truth, shown.predictions[purified], strict=True)
    correct = [shown.classes[label] for label, predicted in pairs if label == predicted]
    words = f"seen nearer to the clean digit again: {' '.join(back) or 'none'}; then correctly classified: "
    yield 2 * len(back) > len(shown.truth), words + (" ".join(correct) or "none")


def of_betas(compare: Callable[[RowsByBeta], Iterator[tuple[bool, str]]]) -> Compare:
    """The comparison of a sweep over beta, if it is complete."""

    def complete(model: str, rows: RowsByBeta) -> Iterator[tuple[bool, str] | None]:
        if any((beta, purified) not in rows for beta in BETAS for purified in (False, True)):
            yield None
            return
        for held, words in compare(rows):
            yield held, words + images_text(rows[0.0, True])

    return complete


def knowing_attacker(rows: RowsByBeta) -> Iterator[tuple[bool, str]]:
    """Accuracy after purification at the worst beta against that under plain PGD."""
    after = {beta: percent(rows[beta, True]) for beta in BETAS}
    worst = min(BETAS, key=lambda beta: after[beta])
    words = f"{after[0.0]:.2f} at beta 0, at worst {after[worst]:.2f} at beta {worst:g}"
    yield after[worst] >= after[0.0] - SIMILAR_POINTS, words


def rising(betas: Sequence[float], sides: Mapping[str, bool], rows: RowsByBeta) -> Iterator[tuple[bool, str]]:
    """Accuracy before or after purification along `betas`."""
    for side, purified in sides.items():
        values = [percent(rows[beta, purified]) for beta in betas]
        fall = max(before - after for before, after in pairwise(values))
        words = f"from {values[0]:.2f} to {values[-1]:.2f} {side} purification"
        words += f", falling by {fall:.2f} in between" if fall > CLEAR_POINTS else ""
        yield values[-1] >= values[0] + CLEAR_POINTS and fall <= CLEAR_POINTS, words


def constant_accuracy(rows: RowsByBeta) -> Iterator[tuple[bool, str]]:
    """Accuracy after purification for every positive beta."""
    plain, *values = (percent(rows[beta, True]) for beta in POSITIVE_BETAS)
    words = f"{plain:.2f} at beta 0, from {min(values):.2f} to {max(values):.2f} above it"
    yield max(abs(value - plain) for value in values) <= SIMILAR_POINTS, words


def fewer_steps(model: str, rows: Mapping[tuple[float, int], Row]) -> Iterator[tuple[bool, str] | None]:
    """The model's own steps against more and smaller steps of the same total length."""
    own = recipes.read(model).purifier
    assert own is not None  # every model of TASKS has one

    def near(gamma: float, steps: int) -> Row | None:
        return next((row for (own, count), row in rows.items() if math.isclose(own, gamma) and count == steps), None)

    few = near(own.step_size, own.steps)
    for factor in (2, 4):
        many = near(own.step_size / factor, own.steps * factor)
        if few is None or many is None:
            yield None
            continue
        words = f"{percent(few):.2f} with {own.steps} steps, {percent(many):.2f} with {own.steps * factor} "
        words += f"steps of 1/{factor} the size{images_text(few)}"
        yield percent(few) >= percent(many) + CLEAR_POINTS, words


def larger_radius(model: str, rows: Mapping[float | str, Row]) -> Iterator[tuple[bool, str] | None]:
    """The attack's radius for all images against slightly larger ones."""
    attack = attack_radius(next(iter(rows.values())))
    shares = {own / attack: row for own, row in rows.items() if not isinstance(own, str)}  # of the attack's radius
    exact = next((row for share, row in shares.items() if math.isclose(share, 1)), None)
    over = [share for share in shares if 1 + RELATIVE_TOLERANCE < share <= MAX_OVERESTIMATE + RELATIVE_TOLERANCE]
    if exact is None or not over:
        yield None
        return
    best = max(over, key=lambda share: shares[share].accuracy)
    words = f"{percent(exact):.2f} at {radius_text(attack, attack)}, at best {percent(shares[best]):.2f} slightly above"
    words += f", at {radius_text(best * attack, attack)}{images_text(exact)}"
    yield percent(shares[best]) >= percent(exact) + CLEAR_POINTS, words


def rotation_loss(model: str, rows: Mapping[tuple[str, str], Row]) -> Iterator[tuple[bool, str] | None]:
    """Under PGD: the radius that cross entropy chooses, and the accuracy with each loss."""
    squared, entropy = (rows.get(("pgd", loss)) for loss in ("squared error", CROSS_ENTROPY))
    if squared is None or entropy is None:
        yield None
        return
    attack, chosen = attack_radius(entropy), entropy.measures["mean_eps_pfy"]
    words = f"cross entropy chooses {radius_text(chosen, attack)} on average, the attack {radius_text(attack, attack)}"
    yield chosen < attack, words
    words = f"under PGD {percent(squared):.2f} by squared error, {percent(entropy):.2f} by cross entropy"
    yield percent(squared) >= percent(entropy) + CLEAR_POINTS, words + images_text(squared)


def training_cost(
    limits: Mapping[str, tuple[float, float]], model: str, seconds: Mapping[str, float]
) -> Iterator[tuple[bool, str] | None]:
    """SOAP's seconds an epoch as a share of another method's. limits: the smallest and largest share by method."""
    network, _, _ = model.rpartition("-")
    for other, (least, most) in limits.items():
        ours, theirs = seconds.get(model), seconds.get(f"{network}-{other}")
        if ours is None or theirs is None:
            yield None
            continue
        words = f"{network} {ours:.2f} s against {METHOD_NAMES[other]} {theirs:.2f} s"
        yield least <= ours / theirs <= most, words


def radius_text(value: float, attack: float) -> str:
    """A radius in the unit of the attack's radius: '0.3' or '8/255'."""
    return f"{value:.3g}" if attack > 0.1 else f"{255 * value:.3g}/255"


def percent(row: Row) -> float:
    """Accuracy in per cent."""
    return 100 * row.accuracy


def images_text(row: Row) -> str:
    """' (1,000 images)'."""
    return f" ({row.n:,} images)"


FIGURE_CHECKS: dict[str, tuple[str, Sequence[str], Compare]] = {
    "loss-tells-attack": ("curve", TASKS, loss_tells_attack),
    "elbow-at-attack-radius": ("curve", TASKS, elbow_at_attack_radius),
    "decoder-sees-class-again": ("examples", (DR,), decoder_output),
    "knowing-the-task-does-not-pay": ("betas", TASKS, of_betas(knowing_attacker)),
    "negative-beta-weakens": (
        "betas",
        TASKS,
        of_betas(partial(rising, NEGATIVE_BETAS, {"before": False, "after": True})),
    ),
    "positive-beta-rises": ("betas", (DR, LC), of_betas(partial(rising, POSITIVE_BETAS, {"after": True}))),
    "positive-beta-stays": ("betas", (RP,), of_betas(constant_accuracy)),
    "over-estimation-helps": ("radii", TASKS, larger_radius),
    "squared-error-for-rotation": ("rotation", (RP,), rotation_loss),
    "few-large-steps": ("steps", TASKS, fewer_steps),
    "small-overhead": ("timing", (*SMALL, *LARGE), partial(training_cost, {"no-def": (0, 1.5)})),
    "small-networks-train-fast": ("timing", SMALL, partial(training_cost, {"fgsm-at": (0, 1.5), "pgd-at": (0, 1 / 2)})),
    "large-networks-train-faster": (
        "timing",
        LARGE,
        partial(training_cost, {"fgsm-at": (1, math.inf), "pgd-at": (0, 2 / 3)}),
    ),
}
"""By claim: what it is checked by, of which models, and the comparison."""
