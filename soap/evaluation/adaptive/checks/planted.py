"""Check 16: a weakness that is known to be there is found."""

from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, passed, points

ENOUGH = 0.95


@check(16, "planted weakness found")
def found_again(evidence: Evidence) -> Answer:
    """A copy of the defence with a guaranteed adversarial example is broken on at least 95 % of images."""
    found = evidence.fact("planted")
    share = found["broken"] / found["planted"]
    figure = f"{points(share)} of {found['planted']} images with a planted weakness"
    figure += f", random points {points(found['by_chance'] / found['planted'])}"
    if share < ENOUGH:
        return failed(figure, "The attack misses adversarial examples that are there, so what it leaves says nothing.")
    return passed(figure, "The attack finds weaknesses that are known to be there.")
