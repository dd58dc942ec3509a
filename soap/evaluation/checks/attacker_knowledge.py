"""Checks 13, 14, 20 and 22: attackers who know more are not weaker, and the strongest gradient rule was used."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from soap.evaluation.cascade import ON_CLASSIFIER, WITHOUT_GRADIENTS
from soap.evaluation.checks import effort, radii
from soap.evaluation.checks.check import (
    FAIL,
    PASS,
    WARN,
    Check,
    Evidence,
    Judgement,
    Measurement,
    NotMeasuredError,
    percent,
)
from soap.evaluation.checks.context import MeasurementContext
from soap.evaluation.plan import strongest_rule
from soap.evaluation.protocols import CLASSIFIER, EXACT, EXTRA, QUERIES_ONLY, RULES, SURROGATE, THROUGH_PURIFIER
from soap.evaluation.summary import ProtocolResult

NOT_WHITE_BOX = ("noise", "autoattack", *QUERIES_ONLY, CLASSIFIER, EXTRA)
"""Attacks without gradients; AutoAttack, whose last part uses queries alone; and attacks of unknown kind."""

GRADIENT_PROTOCOLS = ("transfer", "auxiliary-aware", *(rule for rule in RULES if rule != SURROGATE))
"""Protocols that follow gradients of the defence itself."""

MASKING_TOLERANCE, RANDOM_TOLERANCE = 0.002, 0.02
"""By how much (a share) the attacker who knows more may be weaker; of a random defence, whose accuracies vary."""


def judge_white_box(evidence: Evidence) -> Judgement:
    """All protocols with gradients together against queries, or against random points where there are no queries."""
    lines = evidence.summary.protocols
    if evidence.summary.headline:
        early, masking = (*GRADIENT_PROTOCOLS, SURROGATE), "Attacks without gradients break more than those with them: "
        return judge_late(evidence, early, WITHOUT_GRADIENTS, WITHOUT_GRADIENTS, masking + "gradient masking.")
    black = [line for line in lines if line.protocol in ("substitute", "square")]
    black = black or [line for line in lines if line.protocol == "noise"]
    white = [line for line in lines if line.protocol not in NOT_WHITE_BOX]
    if not black or not white:
        raise NotMeasuredError("It needs a protocol with gradients and one without; run the full suite.")
    share, blind = joint_accuracy(white), joint_accuracy(black)
    measured = f"{percent(share)} white-box, {percent(blind)} {' and '.join(line.protocol for line in black)}"
    if share > blind + tolerance(evidence):
        return FAIL, measured, "Attacks without gradients break more than those with gradients: gradient masking."
    rest = " (compared with random points alone)" if black[0].protocol == "noise" else ""
    return PASS, measured, f"Gradients help the attacker{rest}."


def judge_adaptive(evidence: Evidence) -> Judgement:
    """The adaptive protocols together against transfer.

    `start` is close to transfer, so it prevents a FAIL but does not suffice for a PASS.
    """
    summary = evidence.summary
    if not evidence.plan["purifies"]:
        return PASS, "no purifier", "There is no purifier, so every attack on the classifier is adaptive."
    if summary.headline:
        return judge_strongest(evidence)
    through = [line for line in summary.protocols if line.protocol in THROUGH_PURIFIER]
    transfer = summary.protocol("transfer")
    if not through or transfer is None:
        raise NotMeasuredError("It needs the protocol transfer and one that goes through the purifier.")
    share, alone = joint_accuracy(line for line in summary.protocols if line.protocol in RULES), joint_accuracy(through)
    measured = f"{percent(share)} adaptive, {percent(transfer.accuracy)} transfer"
    if share > transfer.accuracy + tolerance(evidence):
        return FAIL, measured, "Attacks that know the purifier break less than transfer: gradient masking."
    if alone > transfer.accuracy + (RANDOM_TOLERANCE if evidence.plan["random"] else 0):
        measured += f", {percent(alone)} through the purifier"
        return WARN, measured, "Attacks through the purifier break less than transfer: gradient masking there."
    return PASS, measured, "Knowledge of the purifier helps the attacker."


def judge_labels(evidence: Evidence) -> Judgement:
    """FAIL where labels alone break more than gradients, WARN where the imitation does."""
    summary = evidence.summary
    if summary.headline:
        meaning = "Labels alone break more than gradients: gradient masking."
        return judge_late(evidence, GRADIENT_PROTOCOLS, (SURROGATE, *WITHOUT_GRADIENTS), ("decision",), meaning)
    gradients = [line for line in summary.protocols if line.protocol in GRADIENT_PROTOCOLS]
    labels, imitation = summary.protocol("decision"), summary.protocol(SURROGATE)
    if not gradients or (labels is None and imitation is None):
        raise NotMeasuredError("It needs a protocol with gradients, and decision or surrogate; run the full suite.")
    share, allowed = joint_accuracy(gradients), tolerance(evidence)
    others = [line for line in (labels, imitation) if line is not None]
    measured = f"{percent(share)} by gradients, "
    measured += ", ".join(f"{percent(line.accuracy)} by {line.protocol}" for line in others)
    if labels is not None and share > labels.accuracy + allowed:
        return FAIL, measured, "Labels alone break more than gradients: gradient masking."
    if imitation is not None and share > imitation.accuracy + allowed:
        meaning = "An imitation of the purifier gives better gradients than the rules: they miss something."
        return WARN, measured, meaning
    return PASS, measured, "Gradients break at least as much as labels alone or an imitation of the purifier."


def judge_late(
    evidence: Evidence, early: Sequence[str], late: Sequence[str], masking: Sequence[str], meaning: str
) -> Judgement:
    """The judgement of a cascade, in which the protocols `late` attacked what `early` left.

    How many images of `early` the later ones would break is unknown: FAIL, with `meaning`, where those of `masking`
    broke more than `early` even so, PASS where all of `late` broke hardly any, and WARN between.
    """
    summary = evidence.summary
    if not set(summary.done) & set(early) or not set(summary.done) & set(masking):
        raise NotMeasuredError("It needs a protocol with gradients and one without; run the full suite.")
    known, more, most = (len(summary.first_broken_by(names)) for names in (early, late, masking))
    measured = f"{known} images broken by gradients, then {more} more by others, of {summary.clean.n}"
    if most > known + tolerance(evidence) * summary.clean.n:
        return FAIL, measured, meaning
    if more > tolerance(evidence) * summary.clean.n:
        return WARN, measured, "Gradients leave images that weaker attackers break; run without headline to compare."
    return PASS, measured, "Attackers without the gradient break hardly any image that gradients leave."


def judge_strongest(evidence: Evidence) -> Judgement:
    """The judgement of check 14 on a cascade: the strongest attempt alone, from scratch, against the first phase."""
    found, summary = evidence.record(radii.MEASUREMENT), evidence.summary
    if evidence.record(effort.SINGLE_STEP).protocol not in THROUGH_PURIFIER:
        raise NotMeasuredError(f"The attempt that was measured alone, {found.attack}, is not through the purifier.")
    rows = np.flatnonzero(summary.clean.defended)[: found.images]
    share = 1 - float(np.isin(rows, summary.first_broken_by(ON_CLASSIFIER)).mean())
    alone = found.at(evidence.plan["threat"]["eps"])
    measured = f"{percent(alone)} by {found.attack} alone, {percent(share)} by {' and '.join(ON_CLASSIFIER)}"
    if alone > share + tolerance(evidence):
        raise NotMeasuredError(f"{measured}: run without headline to compare all adaptive protocols with transfer.")
    return PASS, f"{measured}, {found.images} images", "Knowledge of the purifier helps the attacker."


def joint_accuracy(lines: Iterable[ProtocolResult]) -> float:
    """Accuracy after the worst of several protocols for each image."""
    return float(np.minimum.reduce([line.values for line in lines]).mean())


def tolerance(evidence: Evidence) -> float:
    """By how much (a share) the attacker who knows more may be weaker."""
    return RANDOM_TOLERANCE if evidence.plan["random"] else MASKING_TOLERANCE


IMAGES = 16


@dataclass(frozen=True, kw_only=True)
class ApplicableRule:
    """strongest: the strongest gradient rule that applies, found by trying; reason: why the exact one does, or not."""

    strongest: str
    exact: bool
    purifies: bool
    reason: str


def measure_rule(context: MeasurementContext) -> ApplicableRule:
    """Try the exact gradient of the whole defence."""
    defence = context.defence
    probe = defence.probe(context.x[:IMAGES])
    rule = strongest_rule(defence, probe)
    return ApplicableRule(strongest=rule, exact=probe.exact, purifies=defence.purifies, reason=probe.reason)


APPLICABLE_RULE = Measurement("strongest-rule", ApplicableRule, measure_rule)


def judge_rule(evidence: Evidence) -> Judgement:
    """FAIL where a differentiable purifier was not attacked through its own gradient."""
    found = evidence.record(APPLICABLE_RULE)
    if not found.purifies:
        return PASS, "no purifier", "There is no purifier: attacks differentiate the network itself."
    measured = f"{found.strongest}; {found.reason}"
    if found.strongest in evidence.summary.done:
        return PASS, measured, "The strongest gradient rule that applies to the purifier was used."
    if found.strongest == EXACT:
        return FAIL, measured, "The purifier is differentiable, and no attack used its gradient: run exact."
    return WARN, measured, f"A stronger gradient rule applies to the purifier: run {found.strongest}."


CHECKS = (
    Check(13, "white-box beats black-box", judge_white_box),
    Check(14, "adaptive beats transfer", judge_adaptive),
    Check(20, "strongest gradient rule used", judge_rule, (APPLICABLE_RULE,)),
    Check(22, "gradients beat labels and imitation", judge_labels),
)
