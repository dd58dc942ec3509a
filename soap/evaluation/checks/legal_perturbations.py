"""Check 1: attacked images lie in [0, 1] and inside the ball, also as 8-bit images."""

from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, NotMeasuredError

NORM_TOLERANCE = 1e-6
"""By how much a norm may exceed the radius in float32."""


def judge(evidence: Evidence) -> Judgement:
    """Every stored image of every attempt."""
    threat, reach = evidence.plan["threat"], evidence.summary.reach
    if reach.images == 0:
        raise NotMeasuredError("No attacked image is stored.")
    measured = (
        f"{reach.images:,} images: {threat['norm']} at most {reach.norm:.6f} of {threat['eps']:.6f}, "
        f"{reach.rounded:.6f} in 8 bits"
    )
    if reach.not_finite:
        return FAIL, f"{reach.not_finite:,} images are not finite", "An attack returned NaN or infinite pixels."
    if reach.outside > 0:
        return FAIL, f"{reach.outside:.6f} outside [0, 1]", "An attack returned pixels outside [0, 1]."
    if max(reach.norm, reach.rounded) > threat["eps"] + NORM_TOLERANCE:
        return FAIL, measured, "An attack left the ball: its images are not those of the threat."
    return PASS, measured, "All attacked images lie in the ball and in [0, 1], also as 8-bit images."


CHECKS = (Check(1, "legal perturbations", judge),)
