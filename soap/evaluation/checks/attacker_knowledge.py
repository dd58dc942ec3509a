"""Checks 13 and 14: attackers who know more must not do worse."""

from collections.abc import Iterable

import numpy as np

from soap.evaluation.adaptive.attempts import ADAPTIVE, THROUGH
from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, not_run, passed, points, warned
from soap.evaluation.adaptive.summary import Line

BLACK = ("black-box", "noise")
MIXED = ("autoattack",)
"""Its last part, Square, goes by queries."""
MASKED = 0.002
"""Points (as a share) by which knowing more may do worse."""


@check(13, "white-box beats black-box")
def white_box(evidence: Evidence) -> Answer:
    """All protocols that see gradients together, against queries (or, where there are none, random points)."""
    lines = evidence.summary.protocols
    black = next((line for name in BLACK for line in lines if line.protocol == name), None)
    white = [line for line in lines if line.protocol not in (*BLACK, *MIXED)]
    if black is None or not white:
        return not_run("It takes a protocol of either kind; run the full suite.")
    share = _left(white)
    figure = f"{points(share)} white-box, {points(black.accuracy)} {black.protocol}"
    if share > black.accuracy + MASKED:
        return failed(figure, "Who sees no gradient breaks more than who does: gradient masking.")
    said = "Gradients help." if black.protocol == BLACK[0] else "Gradients help; random points alone stand beside them."
    return passed(figure, said)


@check(14, "adaptive beats transfer")
def adaptive(evidence: Evidence) -> Answer:
    """The protocols that know the purifier together, against the one that does not.

    `bpda-start` is close to that one, so it may save a figure from being void, but not vouch for it.
    """
    summary = evidence.summary
    if not evidence.plan["purifies"]:
        return passed("no purifier", "Nothing stands before the classifier, so every attack on it is adaptive.")
    through = [line for line in summary.protocols if line.protocol in THROUGH]
    transfer = summary.line("transfer")
    if not through or transfer is None:
        return not_run("It takes the protocol transfer and one that goes through the purifier.")
    share, alone = _left(line for line in summary.protocols if line.protocol in ADAPTIVE), _left(through)
    figure = f"{points(share)} adaptive, {points(transfer.accuracy)} transfer"
    if share > transfer.accuracy + MASKED:
        return failed(figure, "Knowing the purifier breaks less than not knowing it: gradient masking.")
    if alone > transfer.accuracy:
        figure += f", {points(alone)} through the purifier"
        return warned(figure, "Through the purifier less is broken than without knowing it: gradient masking there.")
    return passed(figure, "Knowing the purifier helps the attacker.")


def _left(lines: Iterable[Line]) -> float:
    """Share of images that stand against all of them."""
    return float(np.logical_and.reduce([line.defended for line in lines]).mean())
