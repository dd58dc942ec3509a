"""Check 17: enough images, all of them measured, and the effort of the suite's defaults."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from soap.evaluation.checks.check import FAIL, PASS, WARN, Check, Evidence, Judgement, NotMeasuredError
from soap.evaluation.protocols import EOT_SETTING, MORE_DRAWS, RULES, STRENGTH, AttackPlan, Threat, default_effort

MIN_IMAGES = 100

EFFORT_SETTINGS = ("steps", "restarts", "queries", EOT_SETTING)
"""Settings of attacks that are compared with their defaults."""


def shortfalls(plan: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Images, steps, restarts, queries and draws below the suite's defaults, as (used, default); the largest gaps."""
    found: dict[str, tuple[int, int]] = {}
    if plan["data"]["n"] < MIN_IMAGES:
        found["images"] = plan["data"]["n"], MIN_IMAGES
    made = AttackPlan(
        threat=Threat(**plan["threat"]),
        effort=default_effort(plan["suite"]),
        strongest=next((name for name in STRENGTH if any(one["protocol"] == name for one in plan["attempts"])), ""),
        purifies=plan["purifies"],
        random=plan["random"],
        classes=len(plan["classes"]),
        thorough=plan["suite"] != "quick",
    )
    usual = {
        (protocol, attempt.name): attempt.step.settings
        for protocol in dict.fromkeys(one["protocol"] for one in plan["attempts"])
        for attempt in made.attempts(protocol)
    }
    for one in plan["attempts"]:
        wanted, used = usual.get((one["protocol"], one["name"]), {}), one["attack"]["settings"]
        for setting in EFFORT_SETTINGS:
            gap = used.get(setting, 1), wanted.get(setting, 1)
            if gap[0] < gap[1]:
                found[setting] = max(found.get(setting, gap), gap, key=lambda each: each[1] / each[0])
    adaptive = [one for one in plan["attempts"] if one["protocol"] in RULES and not one.get("unless_converged")]
    most = max((one["attack"]["settings"].get(EOT_SETTING, 1) for one in adaptive), default=1)
    most = max(1, most // MORE_DRAWS[0])  # twice the draws of the effort follow them
    if plan["random"] and most < max(made.effort.draws):
        found["draws"] = most, max(made.effort.draws)
    return found


def judge(evidence: Evidence) -> Judgement:
    """FAIL where the clean batches do not hold every image once, WARN below the default effort."""
    plan, n = evidence.plan, evidence.summary.clean.n
    if not evidence.summary.done:
        raise NotMeasuredError("No protocol is done.")
    rows = evidence.summary.clean_rows
    if not np.array_equal(np.sort(rows), np.arange(n)) or plan["data"]["n"] != n:
        return FAIL, f"{len(set(rows.tolist()))} of {n} images", "The results are not of the images of the plan."
    low, high = evidence.summary.worst.interval
    wide = f"the worst case's interval is {100 * (high - low):.1f} points"  # without its ends: another check may fail
    measured = f"{n:,} images ({plan['provenance']['images']}); {wide}"
    if short := shortfalls(plan):
        text = ", ".join(f"{setting} {used} of {default}" for setting, (used, default) in short.items())
        return WARN, f"{text}; {measured}", f"Less effort than the suite's defaults: {text}."
    return PASS, measured, "Intervals are Wilson's, 95 %."


CHECKS = (Check(17, "sample size and interval", judge),)
