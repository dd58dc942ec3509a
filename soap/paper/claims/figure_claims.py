"""Claims about figures and ablations; the paper prints no numbers for these."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np

from soap import recipes
from soap.paper.claims.checks import ClaimEvidence, ClaimPart, FigureCheck
from soap.paper.example_images import CLEAN, Examples
from soap.paper.figure_data import FigureData
from soap.paper.figure_list import SWEEPS, TASKS, FileInput, SweepInput
from soap.paper.model_names import METHOD_NAMES, method_of
from soap.paper.radius_curve import RadiusCurve
from soap.paper.row_queries import attack_radius
from soap.paper.sweeps import BETAS
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

SMALL = {"mnist-fcn": ("dr",), "cifar10-resnet18": ("rp", "lc")}
LARGE = {"mnist-cnn": ("dr",), "cifar10-wide-resnet28": ("rp", "lc")}

RowsByBeta = Mapping[tuple[float, bool], Row]
"""By (beta, purified)."""
HeldAndWords = tuple[bool, str]
PanelData = TypeVar("PanelData")


def by_model(
    source: Callable[[str], FileInput | SweepInput],
    find: Callable[[FigureData, str], PanelData],
    compare: Callable[[str, PanelData], Iterable[HeldAndWords | None]],
    models: Sequence[str] = TASKS,
) -> FigureCheck:
    """Check: `compare` on what `find` returns for each model; where it gives None, the input `source` is missing."""

    def parts(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
        for model in models:
            for found in compare(model, find(evidence.figure_data, model)):
                if found is None:
                    yield ClaimPart(held=None, missing=((source(model).need, ""),))
                else:
                    yield ClaimPart(held=found[0], subject=method_of(model), words=found[1])

    return parts


def of_curves(compare: Callable[[RadiusCurve], HeldAndWords]) -> FigureCheck:
    """Check of each task's curve of losses against the radius."""
    return by_model(
        partial(FileInput, RadiusCurve),
        lambda data, model: data.find(RadiusCurve, model),
        lambda model, curve: [None if curve is None else compare(curve)],
    )


def of_sweep(
    name: str, compare: Callable[..., Iterable[HeldAndWords | None]], models: Sequence[str] = TASKS
) -> FigureCheck:
    """Check of each model's rows of a sweep."""
    return by_model(partial(SweepInput, name), lambda data, model: SWEEPS[name].find(data.rows, model), compare, models)


def of_betas(compare: Callable[[RowsByBeta], Iterable[HeldAndWords]], models: Sequence[str] = TASKS) -> FigureCheck:
    """Check of each model's sweep over beta, if it is complete."""

    def complete(model: str, rows: RowsByBeta) -> Iterable[HeldAndWords | None]:
        if any((beta, purified) not in rows for beta in BETAS for purified in (False, True)):
            return [None]
        return [(held, words + images_text(rows[0.0, True])) for held, words in compare(rows)]

    return of_sweep("betas", complete, models)


def loss_tells_attack(curve: RadiusCurve) -> HeldAndWords:
    """Mean losses of clean, attacked and purified images."""
    least, gap = min(curve.purified), curve.adversarial - curve.clean
    losses = f"clean {curve.clean:.3g}, attacked {curve.adversarial:.3g}, purified {least:.3g}"
    return gap > 0 and least <= curve.clean + MAX_GAP_SHARE * gap, f"{losses} ({curve.n:,} images)"


def elbow_at_attack_radius(curve: RadiusCurve) -> HeldAndWords:
    """The radius at which the loss stops falling."""
    held = 1 - RELATIVE_TOLERANCE <= curve.elbow / curve.eps_adv <= MAX_OVERESTIMATE + RELATIVE_TOLERANCE
    elbow, attack = (radius_text(value, curve.eps_adv) for value in (curve.elbow, curve.eps_adv))
    return held, f"elbow at {elbow}, attack's radius {attack} ({curve.n:,} images)"


def decoder_output(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Distance of the decoded attacked and purified digits from the decoded clean ones."""
    shown = evidence.figure_data.find(Examples, DR)
    if shown is None:
        yield ClaimPart(held=None, missing=((FileInput(Examples, DR).need, ""),))
        return
    attacked, purified = shown.column("pgd"), shown.column("pgd", purified=True)
    seen = shown.decoded.astype(float)
    far, near = (np.square(seen[column] - seen[shown.column(CLEAN)]).sum((1, 2, 3)) for column in (attacked, purified))
    back = [shown.classes[label] for label, moved in zip(shown.truth, near < far, strict=True) if moved]
    pairs = zip(shown.truth, shown.predictions[purified], strict=True)
    correct = [shown.classes[label] for label, predicted in pairs if label == predicted]
    words = f"seen nearer to the clean digit again: {' '.join(back) or 'none'}; then correctly classified: "
    yield ClaimPart(held=2 * len(back) > len(shown.truth), words=words + (" ".join(correct) or "none"))


def knowing_attacker(rows: RowsByBeta) -> Iterator[HeldAndWords]:
    """Accuracy after purification at the worst beta against that under plain PGD."""
    after = {beta: percent(rows[beta, True]) for beta in BETAS}
    worst = min(BETAS, key=lambda beta: after[beta])
    words = f"{after[0.0]:.2f} at beta 0, at worst {after[worst]:.2f} at beta {worst:g}"
    yield after[worst] >= after[0.0] - SIMILAR_POINTS, words


def rising(betas: Sequence[float], sides: Mapping[str, bool], rows: RowsByBeta) -> Iterator[HeldAndWords]:
    """Accuracy before or after purification along `betas`."""
    for side, purified in sides.items():
        values = [percent(rows[beta, purified]) for beta in betas]
        fall = max(before - after for before, after in pairwise(values))
        words = f"from {values[0]:.2f} to {values[-1]:.2f} {side} purification"
        words += f", falling by {fall:.2f} in between" if fall > CLEAR_POINTS else ""
        yield values[-1] >= values[0] + CLEAR_POINTS and fall <= CLEAR_POINTS, words


def constant_accuracy(rows: RowsByBeta) -> Iterator[HeldAndWords]:
    """Accuracy after purification for every positive beta."""
    plain, *values = (percent(rows[beta, True]) for beta in POSITIVE_BETAS)
    words = f"{plain:.2f} at beta 0, from {min(values):.2f} to {max(values):.2f} above it"
    yield max(abs(value - plain) for value in values) <= SIMILAR_POINTS, words


def fewer_steps(model: str, rows: Mapping[tuple[float, int], Row]) -> Iterator[HeldAndWords | None]:
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


def larger_radius(model: str, rows: Mapping[float | None, Row]) -> Iterator[HeldAndWords | None]:
    """The attack's radius for all images against slightly larger ones."""
    attack = attack_radius(next(iter(rows.values()))) if rows else 0.0
    shares = {own / attack: row for own, row in rows.items() if own is not None}  # of the attack's radius
    exact = next((row for share, row in shares.items() if math.isclose(share, 1)), None)
    over = [share for share in shares if 1 + RELATIVE_TOLERANCE < share <= MAX_OVERESTIMATE + RELATIVE_TOLERANCE]
    if exact is None or not over:
        yield None
        return
    best = max(over, key=lambda share: shares[share].accuracy)
    words = f"{percent(exact):.2f} at {radius_text(attack, attack)}, at best {percent(shares[best]):.2f} slightly above"
    words += f", at {radius_text(best * attack, attack)}{images_text(exact)}"
    yield percent(shares[best]) >= percent(exact) + CLEAR_POINTS, words


def rotation_loss(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Under PGD: the radius that cross entropy chooses, and the accuracy with each loss."""
    rows = SWEEPS["rotation"].find(evidence.figure_data.rows, RP)
    squared, entropy = (rows.get(("pgd", loss)) for loss in ("squared error", "cross entropy"))
    if squared is None or entropy is None:
        yield ClaimPart(held=None, missing=((SweepInput("rotation", RP).need, ""),))
        return
    attack, chosen = attack_radius(entropy), entropy.measures["mean_eps_pfy"]
    words = f"cross entropy chooses {radius_text(chosen, attack)} on average, the attack {radius_text(attack, attack)}"
    yield ClaimPart(held=chosen < attack, words=words)
    words = f"under PGD {percent(squared):.2f} by squared error, {percent(entropy):.2f} by cross entropy"
    yield ClaimPart(held=percent(squared) >= percent(entropy) + CLEAR_POINTS, words=words + images_text(squared))


def training_cost(
    networks: Mapping[str, Sequence[str]], limits: Mapping[str, tuple[float, float]], evidence: ClaimEvidence
) -> Iterator[ClaimPart]:
    """SOAP's seconds an epoch as a share of another method's. limits: the smallest and largest share by method."""
    for network, tasks in networks.items():
        for task in tasks:
            for other, (least, most) in limits.items():
                ours, theirs = (evidence.seconds.get(f"{network}-{method}") for method in (task, other))
                if ours is None or theirs is None:
                    absent = [method for method, found in ((task, ours), (other, theirs)) if found is None]
                    missing = tuple(("epochs timed", f"{network}-{method}") for method in absent)
                    yield ClaimPart(held=None, missing=missing)
                    continue
                words = f"{METHOD_NAMES[task]} {ours:.2f} s against {METHOD_NAMES[other]} {theirs:.2f} s"
                yield ClaimPart(held=least <= ours / theirs <= most, subject=network, words=words)


def radius_text(value: float, attack: float) -> str:
    """A radius in the unit of the attack's radius: '0.3' or '8/255'."""
    return f"{value:.3g}" if attack > 0.1 else f"{255 * value:.3g}/255"


def percent(row: Row) -> float:
    """Accuracy in per cent."""
    return 100 * row.accuracy


def images_text(row: Row) -> str:
    """' (1,000 images)'."""
    return f" ({row.n:,} images)"


FIGURE_CHECKS: dict[str, FigureCheck] = {
    "loss-tells-attack": of_curves(loss_tells_attack),
    "elbow-at-attack-radius": of_curves(elbow_at_attack_radius),
    "decoder-sees-class-again": decoder_output,
    "knowing-the-task-does-not-pay": of_betas(knowing_attacker),
    "negative-beta-weakens": of_betas(partial(rising, NEGATIVE_BETAS, {"before": False, "after": True})),
    "positive-beta-rises": of_betas(partial(rising, POSITIVE_BETAS, {"after": True}), (DR, LC)),
    "positive-beta-stays": of_betas(constant_accuracy, (RP,)),
    "over-estimation-helps": of_sweep("radii", larger_radius),
    "squared-error-for-rotation": rotation_loss,
    "few-large-steps": of_sweep("steps", fewer_steps),
    "small-overhead": partial(training_cost, SMALL | LARGE, {"no-def": (0, 1.5)}),
    "small-networks-train-fast": partial(training_cost, SMALL, {"fgsm-at": (0, 1.5), "pgd-at": (0, 1 / 2)}),
    "large-networks-train-faster": partial(training_cost, LARGE, {"fgsm-at": (1, math.inf), "pgd-at": (0, 2 / 3)}),
}
"""By claim."""
