"""The headline mode: one cascade over all protocols, in which an attack gets the images that no earlier attack broke.

Phases follow each other, so that the checks can tell which kind of attack broke an image: attacks on the bare
classifier, which cost least, attacks through the purifier, its imitation, attacks without gradients, AutoAttack and the
user's attacks, and the bare classifier's own worst case, which is apart. Within a phase, the first batch of images gets
the attacks with the fewest passes first. The other batches get first what broke most images of the first batch for each
pass. Passes are those of the plan: seconds would give another order at every run.
"""

from collections.abc import Mapping, Sequence

from soap.evaluation.protocols import CLASSIFIER, EXTRA, QUERIES_ONLY, RULES, SURROGATE, Attempt

ON_CLASSIFIER = ("transfer", "auxiliary-aware")
WITHOUT_GRADIENTS = ("noise", *QUERIES_ONLY)
PHASES = (
    ON_CLASSIFIER,
    tuple(rule for rule in RULES if rule != SURROGATE),
    (SURROGATE,),
    WITHOUT_GRADIENTS,
    ("autoattack", EXTRA),
    (CLASSIFIER,),
)

ORDER_FACT = "order"
"""The fact that holds the order of the attempts on all batches but the first."""

HEADLINE_NOTE = (
    "headline mode: each attack ran only on images that no earlier attack broke; no results for single protocols"
)

_PHASE = {name: number for number, names in enumerate(PHASES) for name in names}


def first_order(attempts: Sequence[Attempt]) -> list[int]:
    """The attempts, by their numbers, in the order in which they attack the first batch."""
    return sorted(range(len(attempts)), key=lambda each: (_PHASE[attempts[each].protocol], attempts[each].passes, each))


def learned_order(attempts: Sequence[Attempt], broken: Mapping[int, tuple[int, int]]) -> list[int]:
    """The order for the other batches. broken: of the first, by attempt: images that it attacked, and broke."""

    def key(each: int) -> tuple[int, float, int]:
        met, lost = broken.get(each, (0, 0))
        return _PHASE[attempts[each].protocol], -lost / max(1, met * attempts[each].passes), attempts[each].passes

    return sorted(first_order(attempts), key=key)
