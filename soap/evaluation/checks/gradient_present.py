"""Checks 5 and 6: the direction that attacks follow."""

from soap.evaluation.adaptive.checks.inference import optimises
from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, failed, not_run, passed

WRONG = {"float64": 1e-3, "float32": 0.2}
"""Errors, relative to the largest slope, that rounding does not make."""


@check(5, "gradient present")
def present(evidence: Evidence) -> Answer:
    """No image with a zero or non-finite gradient, by cross-entropy and margin together."""
    found = evidence.fact("gradient")
    views = {name: found[name] for name in ("attacked", "bare") if name in found}
    if any(view["cut"] for view in views.values()):
        return failed("no gradient at all", "The graph is cut: outputs do not depend differentiably on the image.")
    lost = max(view["missing"] + view["not_finite"] for view in views.values())
    flat = max(view["cross_entropy_zero"] for view in views.values())
    figure = f"{lost} of {found['images']} images without a gradient"
    if lost:
        return failed(figure, "Zero or non-finite gradients lead attacks nowhere; whether the images hold is unknown.")
    if flat:
        figure += f" ({flat} by cross-entropy alone)"
    return passed(figure, "Attacks have a direction to follow on every image.")


@check(6, "gradient right")
def right(evidence: Evidence) -> Answer:
    """It agrees with central differences; where another rule stands for it, the rule is named."""
    found = evidence.fact("differences")
    rule = found["rule"]
    if rule == "gradient" and optimises(evidence.fact("optimisation")):
        rule = "BPDA or surrogate: the module optimises inside, autograd sees what it lets through"
    if found["error"] is None:
        said = f"The gradient of {found['images']} images is zero, or the loss nowhere smooth: nothing to compare."
        return not_run(said)
    figure = f"error {found['error']:.1e} on {found['directions']} directions, {found['precision']}"
    if found["error"] <= WRONG[found["precision"]]:
        return passed(f"{figure}; {rule}", "The gradient is that of the loss.")
    if found["whole"] and rule != "gradient":
        return passed(f"{figure}; {rule}", "The direction is no gradient, and is said to be none.")
    return failed(figure, "Autograd's gradient is not the slope of the loss: attacks are led astray.")
