"""Claims about the attacker who weighs the auxiliary loss by beta: Figure 5."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from soap.evaluation import swept
from soap.evaluation.sweeps import BETAS
from soap.paper.figures import TASKS
from soap.paper.pieces import Swept
from soap.paper.verdicts.findings import Findings
from soap.paper.verdicts.parts import Check, Part
from soap.paper.verdicts.wording import images, lacking_piece, percent, task_of
from soap.results import Row

CLEARLY, ABOUT = 1.0, 3.0
"""Points."""
DR, RP, LC = TASKS
NEGATIVE = sorted((beta for beta in BETAS if beta <= 0), reverse=True)
POSITIVE = sorted(beta for beta in BETAS if beta >= 0)

Rows = Mapping[tuple[float, bool], Row]
"""By beta and whether purified."""


def knowing(findings: Findings) -> Iterator[Part]:
    """The accuracy after purification at the worst beta against that under plain PGD."""
    for model in TASKS:
        rows = _whole(findings, model)
        if rows is None:
            yield lacking_piece(Swept("betas", model))
            continue
        after = {beta: percent(rows[beta, True]) for beta in BETAS}
        worst = min(BETAS, key=lambda beta: after[beta])
        held = after[worst] >= after[0.0] - ABOUT
        words = f"{after[0.0]:.2f} at beta 0, at worst {after[worst]:.2f} at beta {worst:g}"
        yield Part(held=held, subject=task_of(model), words=words + images(rows[0.0, True]))


def negative(findings: Findings) -> Iterator[Part]:
    """Accuracies before and after purification as beta falls from 0."""
    for model in TASKS:
        yield from _rising(findings, model, NEGATIVE, {"before": False, "after": True})


def positive(findings: Findings) -> Iterator[Part]:
    """Accuracies after purification as beta rises from 0."""
    for model in (DR, LC):
        yield from _rising(findings, model, POSITIVE, {"after": True})


def _rising(findings: Findings, model: str, betas: Sequence[float], sides: Mapping[str, bool]) -> Iterator[Part]:
    rows = _whole(findings, model)
    if rows is None:
        yield lacking_piece(Swept("betas", model))
        return
    for side, purified in sides.items():
        values = [percent(rows[beta, purified]) for beta in betas]
        fall = max(before - after for before, after in pairwise(values))
        words = f"from {values[0]:.2f} to {values[-1]:.2f} {side} purification"
        words += f", falling by {fall:.2f} in between" if fall > CLEARLY else ""
        held = values[-1] >= values[0] + CLEARLY and fall <= CLEARLY
        yield Part(held=held, subject=task_of(model), words=words + images(rows[0.0, True]))


def steady(findings: Findings) -> Iterator[Part]:
    """Accuracies of rotation prediction after purification for every positive beta."""
    rows = _whole(findings, RP)
    if rows is None:
        yield lacking_piece(Swept("betas", RP))
        return
    plain, *values = (percent(rows[beta, True]) for beta in POSITIVE)
    held = max(abs(value - plain) for value in values) <= ABOUT
    words = f"{plain:.2f} at beta 0, from {min(values):.2f} to {max(values):.2f} above it"
    yield Part(held=held, subject=task_of(RP), words=words + images(rows[0.0, True]))


def _whole(findings: Findings, model: str) -> Rows | None:
    """The model's sweep; None unless every beta was measured."""
    rows = swept.by_beta(findings.material.rows, model)
    return rows if all((beta, purified) in rows for beta in BETAS for purified in (False, True)) else None


OF_BETAS: dict[str, Check[Findings]] = {
    "knowing-the-task-does-not-pay": Check(
        rule=f"no beta leaves more than {ABOUT:g} points less after purification than plain PGD (beta 0)", parts=knowing
    ),
    "negative-beta-weakens": Check(
        rule=f"before and after purification: at least {CLEARLY:g} point higher at beta -100 than at 0, and no fall by "
        f"more than {CLEARLY:g} point from one beta to the next",
        parts=negative,
    ),
    "positive-beta-rises": Check(
        rule=f"after purification: at least {CLEARLY:g} point higher at beta 100 than at 0, and no fall by more than "
        f"{CLEARLY:g} point from one beta to the next",
        parts=positive,
    ),
    "positive-beta-stays": Check(
        rule=f"within {ABOUT:g} points of plain PGD (beta 0) after purification, for every positive beta", parts=steady
    ),
}
