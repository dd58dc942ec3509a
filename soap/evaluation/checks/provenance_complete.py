"""Check 19: hashes, commit, versions, settings and all attacked images are stored."""

import re

from soap.evaluation.checks.check import FAIL, PASS, WARN, Check, Evidence, Judgement, NotMeasuredError
from soap.evaluation.run_folder import CONTINUED

SHA256 = re.compile(r"[0-9a-f]{64}")
REQUIRED = ("images", "seed", "batch_size", "version", "torch", "python", "device", "date")


def judge(evidence: Evidence) -> Judgement:
    """FAIL without valid hashes, WARN where something else is not stated."""
    plan, stated = evidence.plan, evidence.plan["provenance"]
    hashes = [stated.get("weights_sha256"), stated.get("data_sha256"), plan["data"]["sha256"]]
    if not all(isinstance(value, str) and SHA256.fullmatch(value) for value in hashes) or hashes[1] != hashes[2]:
        return FAIL, "hashes missing or contradictory", "It is unknown which weights and images were measured."
    missing = [name for name in REQUIRED if stated.get(name) in (None, "")]
    unsettled = [one["name"] for one in plan["attempts"] if not one.get("attack")]
    undone = {one["protocol"] for one in plan["attempts"]} - set(evidence.summary.done)
    measured = (
        f"weights {evidence.folder.weights_text(12)}, data {hashes[1][:12]}, commit {str(stated.get('commit'))[:12]}"
    )
    for other in (evidence.folder.read_fact(CONTINUED) or {"by": []})["by"]:
        measured += f"; resumed at {str(other['commit'])[:12]}, torch {other['torch']}, {other['device']}"
    if missing or unsettled:
        return WARN, measured, f"Not stated: {', '.join([*missing, *unsettled])}."
    if undone:
        raise NotMeasuredError(
            f"Attacked images are missing for {', '.join(sorted(undone))}: run the suite to its end."
        )
    if not stated.get("commit"):
        return WARN, measured, "The commit is not known: run from a checkout, or set SOAP_COMMIT."
    return PASS, measured, "The command soap verify classifies the stored images again."


CHECKS = (Check(19, "provenance", judge),)
