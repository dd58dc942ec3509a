"""Checks 7, 8, 9 and 12: whether the attack made the most of its steps."""

from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, not_run, passed, points, warned

MOVES = 0.005
"""Half a point of accuracy."""


@check(7, "best iterate kept")
def best_iterate(evidence: Evidence) -> Answer:
    """The attack gives back broken every image that it broke on its way."""
    found = evidence.fact("best-iterate")
    if not evidence.fact("determinism")["deterministic"]:
        return not_run("The defence draws at random (check 3), so a point that broke it once need not do so again.")
    figure = f"{found['lost']} of {found['broken_on_the_way']} images broken on the way were given back unbroken"
    if found.get("doubtful"):
        figure += f"; {found['doubtful']} broke in one batch and not in another"
    if found["lost"] > MOVES * found["images"]:
        return warned(figure, "The attack returns another iterate than its best.")
    return passed(figure, "The attack keeps its best iterate.")


@check(8, "converged")
def converged(evidence: Evidence) -> Answer:
    """Twice the iterations move accuracy by less than half a point."""
    return _moves(evidence, "doubled-steps", "iterations")


@check(9, "restarts")
def restarts(evidence: Evidence) -> Answer:
    """Twice the restarts move accuracy by less than half a point."""
    return _moves(evidence, "doubled-restarts", "restarts")


@check(12, "iterative beats single-step")
def iterative(evidence: Evidence) -> Answer:
    """Many steps are at least as strong as one."""
    found = evidence.fact("single-step")
    figure = f"{points(found['iterative'])} after {found['protocol']}, {points(found['single'])} after one step"
    figure += f", {found['images']} images"
    if found["iterative"] > found["single"]:
        return failed(figure, "One step breaks more than many: the gradient misleads away from the image.")
    return passed(figure, "Many steps break at least as much as one.")


def _moves(evidence: Evidence, fact: str, what: str) -> Answer:
    found = evidence.fact(fact)
    figure = f"accuracy moves by {100 * found['moved']:.2f} points ({found['broken']} of {found['images']} that stood)"
    if found["moved"] >= MOVES:
        return warned(figure, f"Twice the {what} break more: the attack has not converged. Give it more.")
    return passed(figure, f"Twice the {what} change little.")
