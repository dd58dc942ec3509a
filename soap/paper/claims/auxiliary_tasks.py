"""Claims about what the auxiliary task sees of an attack and of purification: Figures 2 and 3."""

from collections.abc import Iterator

import numpy as np

from soap.evaluation import curves
from soap.evaluation import examples as pictures
from soap.evaluation.curves import FALLEN, RadiusCurve
from soap.evaluation.examples import CLEAN, Examples
from soap.paper.figures import TASKS
from soap.paper.pieces import Curve, Pictures
from soap.paper.verdicts.findings import Findings
from soap.paper.verdicts.parts import Check, Part
from soap.paper.verdicts.wording import lacking_piece, radius, task_of

LEFT = 0.1
"""The share of the gap between attacked and clean images that may be left."""
OVER = 1.5
"""Slightly over-estimated: at most so many times the attack's radius."""
ROUNDING = 1e-3
"""Relative; the attack's radius is read off the images."""


def loss_tells_attack(findings: Findings) -> Iterator[Part]:
    """Mean losses of clean, attacked and purified images, for each task."""
    for model in TASKS:
        curve = findings.material.find(curves.file_name(model), RadiusCurve)
        if curve is None:
            yield lacking_piece(Curve(model))
            continue
        least = min(curve.purified)
        held = curve.clean < curve.adversarial and least <= curve.clean + LEFT * (curve.adversarial - curve.clean)
        losses = f"clean {curve.clean:.3g}, attacked {curve.adversarial:.3g}, purified {least:.3g}"
        yield Part(held=held, subject=task_of(model), words=f"{losses} ({curve.n:,} images)")


def elbow(findings: Findings) -> Iterator[Part]:
    """Where the loss stops falling, for each task."""
    for model in TASKS:
        curve = findings.material.find(curves.file_name(model), RadiusCurve)
        if curve is None:
            yield lacking_piece(Curve(model))
            continue
        share = curve.elbow / curve.eps_adv
        held = 1 - ROUNDING <= share <= OVER + ROUNDING
        radii = f"elbow at {radius(curve.elbow, curve.eps_adv)}, attack's radius {radius(curve.eps_adv, curve.eps_adv)}"
        yield Part(held=held, subject=task_of(model), words=f"{radii} ({curve.n:,} images)")


def decoded(findings: Findings) -> Iterator[Part]:
    """What the decoder makes of attacked and purified digits, against what it makes of clean ones."""
    model = TASKS[0]
    shown = findings.material.find(pictures.file_name(model), Examples)
    if shown is None:
        yield lacking_piece(Pictures(model))
        return
    seen = shown.decoded.astype(float)
    clean = seen[shown.column(CLEAN)]
    far, near = (
        np.square(seen[shown.column("pgd", purified=purified)] - clean).sum((1, 2, 3)) for purified in (False, True)
    )
    back = [shown.classes[label] for label, moved in zip(shown.truth, near < far, strict=True) if moved]
    answers = shown.answers[shown.column("pgd", purified=True)]
    right = [shown.classes[label] for label, answer in zip(shown.truth, answers, strict=True) if label == answer]
    words = f"seen nearer to the clean digit again: {' '.join(back) or 'none'}; then classified rightly: "
    yield Part(held=2 * len(back) > len(shown.truth), words=words + (" ".join(right) or "none"))


SEEN: dict[str, Check[Findings]] = {
    "loss-tells-attack": Check(
        rule="attacked above clean, and the lowest purified loss above clean by at most a tenth of that gap",
        parts=loss_tells_attack,
    ),
    "elbow-at-attack-radius": Check(
        rule=f"the smallest radius with {100 * FALLEN:g} % of the whole fall is 1 to {OVER:g} times the attack's",
        parts=elbow,
    ),
    "decoder-sees-class-again": Check(
        rule="for more than half of the ten digits, what the decoder makes of the purified one is nearer to what it "
        "makes of the clean one than what it makes of the attacked one is",
        parts=decoded,
    ),
}
