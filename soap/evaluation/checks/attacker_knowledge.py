"""Checks 13 and 14: attackers who know more are not weaker."""

from collections.abc import Iterable

import numpy as np

from soap.evaluation.checks.check import FAIL, PASS, WARN, Check, Evidence, Judgement, NotMeasuredError, percent
from soap.evaluation.plan import ADAPTIVE, THROUGH_PURIFIER
from soap.evaluation.summary import ProtocolResult

BLACK_BOX = ("black-box", "noise")
MIXED = ("autoattack",)
"""Neither white-box nor black-box: its last part, Square, uses queries alone."""

MASKING_TOLERANCE = 0.002
"""By how much (a share) the attacker who knows more may be weaker."""


def judge_white_box(evidence: Evidence) -> Judgement:
    """All protocols with gradients together against queries, or against random points where there are no queries."""
    lines = evidence.summary.protocols
    black = next((line for name in BLACK_BOX for line in lines if line.protocol == name), None)
    white = [line for line in lines if line.protocol not in (*BLACK_BOX, *MIXED)]
    if black is None or not white:
        raise NotMeasuredError("It needs a protocol with gradients and one without; run the full suite.")
    share = _survived(white)
    measured = f"{percent(share)} white-box, {percent(black.accuracy)} {black.protocol}"
    if share > black.accuracy + MASKING_TOLERANCE:
        return FAIL, measured, "Attacks without gradients break more than those with gradients: gradient masking."
    rest = "" if black.protocol == BLACK_BOX[0] else " (compared with random points alone)"
    return PASS, measured, f"Gradients help the attacker{rest}."


def judge_adaptive(evidence: Evidence) -> Judgement:
    """The adaptive protocols together against transfer.

    `bpda-start` is close to transfer, so it prevents a FAIL but does not suffice for a PASS.
    """
    summary = evidence.summary
    if not evidence.plan["purifies"]:
        return PASS, "no purifier", "There is no purifier, so every attack on the classifier is adaptive."
    through = [line for line in summary.protocols if line.protocol in THROUGH_PURIFIER]
    transfer = summary.protocol("transfer")
    if not through or transfer is None:
        raise NotMeasuredError("It needs the protocol transfer and one that goes through the purifier.")
    share, alone = _survived(line for line in summary.protocols if line.protocol in ADAPTIVE), _survived(through)
    measured = f"{percent(share)} adaptive, {percent(transfer.accuracy)} transfer"
    if share > transfer.accuracy + MASKING_TOLERANCE:
        return FAIL, measured, "Attacks that know the purifier break less than transfer: gradient masking."
    if alone > transfer.accuracy:
        measured += f", {percent(alone)} through the purifier"
        return WARN, measured, "Attacks through the purifier break less than transfer: gradient masking there."
    return PASS, measured, "Knowledge of the purifier helps the attacker."


def _survived(lines: Iterable[ProtocolResult]) -> float:
    """Share of images that survive all of them."""
    return float(np.logical_and.reduce([line.defended for line in lines]).mean())


CHECKS = (
    Check(13, "white-box beats black-box", judge_white_box),
    Check(14, "adaptive beats transfer", judge_adaptive),
)
