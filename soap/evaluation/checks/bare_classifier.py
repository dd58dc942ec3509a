"""Check 15: the bare classifier beside the defence."""

from soap.evaluation.adaptive.checks.inference import optimises
from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, not_run, passed, points, warned
from soap.evaluation.adaptive.summary import paired_difference


@check(15, "bare classifier beside it")
def beside(evidence: Evidence) -> Answer:
    """Gain on the same points with its interval, and its cost; clean images tell whether it is the same network."""
    cost, summary = evidence.fact("cost"), evidence.summary
    whole, alone = cost["defended"], cost["bare"]
    passes = (
        f"{whole['forward']:.1f} forward and {whole['backward']:.1f} backward passes an image (alone "
        f"{alone['forward']:.1f} and {alone['backward']:.1f}), {whole['seconds'] / alone['seconds']:.1f} x the time"
    )
    if not evidence.plan["separable"]:
        if optimises(evidence.fact("optimisation")):
            return not_run(f"The classifier cannot be told apart from its defence, so the gain is unknown; {passes}.")
        return passed(passes, "The network is its own classifier; there is nothing to compare.")
    if not evidence.plan["purifies"]:
        return passed(passes, "Nothing stands before the classifier.")
    gain, clean = summary.worst.gain, summary.clean.bare
    if gain is None or clean is None:
        return not_run("What the classifier says alone is not stored.")
    figure = f"gain {_signed(gain[0])} [{_signed(gain[1])}, {_signed(gain[2])}] points; {passes}"
    ahead, low, _ = paired_difference(summary.clean.defended, clean)
    if low > 0:
        return warned(
            f"{points(ahead)} ahead on clean images; {figure}",
            "The classifier alone does worse on clean images: is it given them as it was trained (normalisation)? "
            "Else gain and gradients are another network's.",
        )
    return passed(figure, "The classifier alone was asked about the same points.")


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"
