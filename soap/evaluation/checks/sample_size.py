"""Check 17: every accuracy is measured on all images of the run, with its interval."""

import numpy as np

from soap.evaluation.checks.check import FAIL, PASS, Check, Evidence, Judgement, NotMeasuredError


def judge(evidence: Evidence) -> Judgement:
    """FAIL where the clean batches do not hold every image once."""
    plan, n = evidence.plan, evidence.summary.clean.n
    if not evidence.summary.protocols:
        raise NotMeasuredError("No protocol is done.")
    rows = evidence.summary.clean_rows
    if not np.array_equal(np.sort(rows), np.arange(n)) or plan["data"]["n"] != n:
        return FAIL, f"{len(set(rows.tolist()))} of {n} images", "The results are not of the images of the plan."
    low, high = evidence.summary.worst.interval
    wide = f"the worst case's interval is {100 * (high - low):.1f} points"  # without its ends: another check may fail
    return PASS, f"{n:,} images ({plan['provenance']['images']}); {wide}", "Intervals are Wilson's, 95 %."


CHECKS = (Check(17, "sample size and interval", judge),)
