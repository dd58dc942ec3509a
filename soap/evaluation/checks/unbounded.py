"""Checks 10 and 11: the attack at other radii."""

from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, not_run, passed, points, warned

FEWEST = 6
ROUNDING = 1e-9


@check(10, "unbounded attack reaches 0 %")
def unbounded(evidence: Evidence) -> Answer:
    """Where any image may be reached, every image is broken."""
    found = evidence.fact("unbounded")
    figure = f"{points(found['standing'] / found['images'])} at eps = {found['eps']:g}, {found['images']} images"
    if found["standing"]:
        return failed(figure, "An attack that may go anywhere breaks every classifier, unless it cannot find its way.")
    return passed(figure, "Without a bound the attack breaks every image.")


@check(11, "accuracy falls with eps")
def falls(evidence: Evidence) -> Answer:
    """It never rises from a radius to the next, over at least six."""
    found = evidence.fact("radii")
    eps, shares = found["eps"], found["accuracy"]
    if sum(radius > 0 for radius in eps) < FEWEST:
        return not_run(f"Only {sum(radius > 0 for radius in eps)} radii were tried, want {FEWEST}.")
    rises = [(after - before, radius) for before, after, radius in zip(shares, shares[1:], eps[1:], strict=False)]
    worst, where = max(rises)
    if worst > ROUNDING:
        return warned(
            f"rises by {points(worst)} at eps = {where:.4g}", "A larger ball holds the smaller: the attack is weak."
        )
    return passed(f"{' '.join(points(share) for share in shares)} at {len(eps) - 1} radii", "Accuracy falls with eps.")
