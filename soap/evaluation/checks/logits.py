"""Checks 2 and 3: what the defence answers."""

from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, passed, points, warned


@check(2, "logits, not probabilities")
def logits(evidence: Evidence) -> Answer:
    """Outputs are finite, and no rows of non-negative numbers that sum to one."""
    found = evidence.fact("outputs")
    if not found["finite"]:
        return failed("NaN or infinite", "The defence answers with numbers that are not finite on clean images.")
    figure = f"{found['low']:.3g} to {found['high']:.3g} on {found['images']} images"
    if found["probabilities"]:
        return failed(
            f"rows sum to 1, {figure}", "These are probabilities: a softmax flattens what attacks climb. Remove it."
        )
    return passed(figure, "The defence gives logits.")


@check(3, "deterministic")
def deterministic(evidence: Evidence) -> Answer:
    """The same answers over 5 calls; else both attacks that randomness asks for."""
    found = evidence.fact("determinism")
    figure = f"{found['changed_labels']} of {found['images']} labels change over {found['calls']} calls"
    if found["deterministic"]:
        return passed(figure, "The defence gives the same answer every time.")
    if found.get("expectation") is None or found.get("fixed") is None:
        return failed(figure, "The defence draws at random, and no attack took that into account.")
    both = f"{points(found['expectation'])} against the expectation of {found['draws']} draws, "
    both += f"{points(found['fixed'])} with the draw fixed"
    return warned(
        f"{figure}; {both}",
        "The defence draws at random, and the attempts climb a single draw: the lower of the two figures is nearer.",
    )
