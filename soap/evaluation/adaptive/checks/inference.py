"""Check 4: a defence that optimises at inference must be attacked by those who know it."""

from typing import Any

from soap.evaluation.adaptive.attempts import THROUGH
from soap.evaluation.adaptive.checks.registry import Answer, Evidence, check, passed, warned


def optimises(found: dict[str, Any]) -> bool:
    """Whether a defence was seen to optimise, or to purify."""
    return bool(found["purifier"] or found["gradients"] or found["optimiser_steps"] or found["weights_changed"])


@check(4, "optimisation at inference")
def adaptive_where_needed(evidence: Evidence) -> Answer:
    """Where there is any, a protocol that knows it was run."""
    found = evidence.fact("optimisation")
    figure = (
        f"{found['gradients']} gradients, {found['optimiser_steps']} optimiser steps, "
        f"{found['weights_changed']} weights changed in one call"
    )
    if not optimises(found):
        return passed(figure, "The defence does not optimise when it answers; no adaptive protocol is needed.")
    done = [name for name in THROUGH if evidence.summary.line(name) is not None]
    figure = f"{'a purifier; ' if found['purifier'] else ''}{figure}"
    if done:
        return passed(figure, f"The defence optimises when it answers; {', '.join(done)} attacked it knowing that.")
    first = "" if found["purifier"] else "give classifier and purifier apart (Target.of_parts), and "
    return warned(
        figure,
        f"The defence optimises when it answers, and no attack went through that: {first}run bpda at least.",
    )
