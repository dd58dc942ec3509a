"""Checks 17, 18 and 19: what a reader needs to measure the same again."""

import re

import numpy as np

from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, not_run, passed, warned
from soap.evaluation.adaptive.folder import CONTINUED

MOVES = 0.005
HASH = re.compile(r"[0-9a-f]{64}")
STATED = ("images", "seed", "batch", "version", "torch", "python", "device", "date")


@check(17, "sample size and interval")
def sample(evidence: Evidence) -> Answer:
    """Every figure is of all images, whose numbers are stored."""
    plan, n = evidence.plan, len(evidence.data)
    if not evidence.summary.protocols:
        return not_run("No protocol is done.")
    seen = [evidence.folder.batch(None, number) for number in range(-(-n // int(plan["batch"])))]
    rows = np.concatenate([batch.rows for batch in seen if batch is not None] or [np.empty(0, int)])
    if not np.array_equal(np.sort(rows), np.arange(n)) or plan["data"]["n"] != n:
        return failed(f"{len(set(rows.tolist()))} of {n} images", "The figures are not of the images named.")
    low, high = evidence.summary.worst.interval
    wide = f"the worst case's interval is {100 * (high - low):.1f} points"  # without its ends: the run may be void
    figure = f"{n:,} images ({plan['provenance']['images']}); {wide}"
    return passed(figure, "Intervals are Wilson's, 95 %.")


@check(18, "repeatable")
def repeatable(evidence: Evidence) -> Answer:
    """The same seed gives the same bits; another batch size the same decisions, or their count."""
    found = evidence.fact("repeat")
    one, other = found["batches"]
    figure = f"{found['different_images']} of {found['images']} images differ in a second run; "
    moved = found["different_decisions"]
    figure += f"{moved} {'decision' if moved == 1 else 'decisions'} in batches of {other} instead of {one}"
    if found["different_images"]:
        return warned(figure, "The same seed does not give the same images.")
    if found["moved"] >= MOVES:
        return warned(figure, "An answer depends on the images beside it: the figure is that of this batch size.")
    return passed(figure, "The same seed gives the same bits.")


@check(19, "provenance")
def provenance(evidence: Evidence) -> Answer:
    """Hashes, commit, versions, settings and seconds are there, and every attacked image."""
    plan, stated = evidence.plan, evidence.plan["provenance"]
    hashes = [stated.get("weights_sha256"), stated.get("data_sha256"), plan["data"]["sha256"]]
    if not all(isinstance(value, str) and HASH.fullmatch(value) for value in hashes) or hashes[1] != hashes[2]:
        return failed("hashes missing or at odds", "Which weights and images were measured cannot be told.")
    missing = [name for name in STATED if stated.get(name) in (None, "")]
    unsettled = [one["name"] for one in plan["attempts"] if not one.get("settings")]
    undone = {one["protocol"] for one in plan["attempts"]} - set(evidence.summary.outcomes)
    figure = f"weights {hashes[0][:12]}, data {hashes[1][:12]}, commit {str(stated.get('commit'))[:12]}"
    for other in (evidence.folder.fact(CONTINUED) or {"by": []})["by"]:
        figure += f"; went on at {str(other['commit'])[:12]}, torch {other['torch']}, {other['device']}"
    if missing or unsettled:
        return warned(figure, f"Not stated: {', '.join([*missing, *unsettled])}.")
    if undone:
        return not_run(f"Attacked images are missing for {', '.join(sorted(undone))}: run the suite to its end.")
    if not stated.get("commit"):
        return warned(figure, "The commit is not known: run from a checkout, or set SOAP_COMMIT.")
    return passed(figure, "The command soap verify scores the stored images again.")
