"""Claims about the auxiliary loss and the decoder under attack and purification: Figures 2 and 3."""

from collections.abc import Iterator

import numpy as np

from soap.paper import attacked_examples, radius_curve
from soap.paper.attacked_examples import CLEAN, Examples
from soap.paper.claims.checks import ClaimCheck, ClaimEvidence, ClaimPart, radius_text, undecided
from soap.paper.figure_inputs import CurveInput, ExamplesInput
from soap.paper.figure_list import TASKS
from soap.paper.model_names import method_of
from soap.paper.radius_curve import ELBOW_SHARE, RadiusCurve

MAX_GAP_SHARE = 0.1
"""Of the gap between attacked and clean images, the largest share that purification may leave."""
MAX_OVERESTIMATE = 1.5
"""A slight over-estimate of the radius is at most so many times the attack's."""
RELATIVE_TOLERANCE = 1e-3
"""The attack's radius is measured on the images."""


def loss_tells_attack(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Mean losses of clean, attacked and purified images, for each task."""
    for model in TASKS:
        curve = evidence.figure_data.find(radius_curve.file_name(model), RadiusCurve)
        if curve is None:
            yield undecided(CurveInput(model))
            continue
        least = min(curve.purified)
        held = curve.clean < curve.adversarial and least <= curve.clean + MAX_GAP_SHARE * (
            curve.adversarial - curve.clean
        )
        losses = f"clean {curve.clean:.3g}, attacked {curve.adversarial:.3g}, purified {least:.3g}"
        yield ClaimPart(held=held, subject=method_of(model), words=f"{losses} ({curve.n:,} images)")


def elbow_at_attack_radius(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """The radius at which the loss stops falling, for each task."""
    for model in TASKS:
        curve = evidence.figure_data.find(radius_curve.file_name(model), RadiusCurve)
        if curve is None:
            yield undecided(CurveInput(model))
            continue
        share = curve.elbow / curve.eps_adv
        held = 1 - RELATIVE_TOLERANCE <= share <= MAX_OVERESTIMATE + RELATIVE_TOLERANCE
        elbow, attack = (radius_text(value, curve.eps_adv) for value in (curve.elbow, curve.eps_adv))
        radii = f"elbow at {elbow}, attack's radius {attack}"
        yield ClaimPart(held=held, subject=method_of(model), words=f"{radii} ({curve.n:,} images)")


def decoder_output(evidence: ClaimEvidence) -> Iterator[ClaimPart]:
    """Distance of the decoded attacked and purified digits from the decoded clean ones."""
    model = TASKS[0]
    shown = evidence.figure_data.find(attacked_examples.file_name(model), Examples)
    if shown is None:
        yield undecided(ExamplesInput(model))
        return
    seen = shown.decoded.astype(float)
    clean = seen[shown.column(CLEAN)]
    far, near = (
        np.square(seen[shown.column("pgd", purified=purified)] - clean).sum((1, 2, 3)) for purified in (False, True)
    )
    back = [shown.classes[label] for label, moved in zip(shown.truth, near < far, strict=True) if moved]
    predictions = shown.predictions[shown.column("pgd", purified=True)]
    correct = [
        shown.classes[label] for label, predicted in zip(shown.truth, predictions, strict=True) if label == predicted
    ]
    words = f"seen nearer to the clean digit again: {' '.join(back) or 'none'}; then correctly classified: "
    yield ClaimPart(held=2 * len(back) > len(shown.truth), words=words + (" ".join(correct) or "none"))


AUXILIARY_TASKS: dict[str, ClaimCheck[ClaimEvidence]] = {
    "loss-tells-attack": ClaimCheck(
        rule="attacked above clean, and the lowest purified loss above clean by at most a tenth of that gap",
        parts=loss_tells_attack,
    ),
    "elbow-at-attack-radius": ClaimCheck(
        rule=f"the smallest radius with {100 * ELBOW_SHARE:g} % of the whole fall is 1 to {MAX_OVERESTIMATE:g} times "
        "the attack's",
        parts=elbow_at_attack_radius,
    ),
    "decoder-sees-class-again": ClaimCheck(
        rule="for more than half of the ten digits, what the decoder makes of the purified one is nearer to what it "
        "makes of the clean one than what it makes of the attacked one is",
        parts=decoder_output,
    ),
}
