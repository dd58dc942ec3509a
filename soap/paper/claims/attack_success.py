"""Claims about how often the L2 attacks succeed: Tables 8 and 9."""

from collections.abc import Iterator, Sequence

from soap.paper.tables import TABLES, Table
from soap.paper.verdicts.numbers import Number, Tables, decided, lacking, number
from soap.paper.verdicts.parts import Check, Part, mostly

EASY, SELDOM = 95.0, 50.0
"""Success rates in per cent."""
TYPICALLY, NEARLY_ALWAYS = 0.5, 0.75
"""Shares of the cases."""

GROUP = "success"


def _cases(tables: Tables) -> Iterator[dict[str, Number]]:
    """For every attack and network the success rates by method."""
    for name in ("table-8", "table-9"):
        table = TABLES[name]
        if isinstance(table, Table):
            for row in table.rows:
                columns = [column.name for column in table.columns]
                yield {column: number(tables, name, row.name, GROUP, column) for column in columns}


def lowest_for_pgd_training(tables: Tables) -> Iterator[Part]:
    """PGD adversarial training against all others."""
    parts = []
    for case in _cases(tables):
        own, others = case["pgd-at"], [rate for method, rate in case.items() if method != "pgd-at"]
        parts.append(_lowest(own, others))
    yield mostly(parts, TYPICALLY)


def _lowest(own: Number, others: Sequence[Number]) -> Part:
    lacks, known = lacking(own, *others), [rate for rate in others if rate.value is not None]
    if own.value is None or not known:
        return Part(held=None, lacks=lacks)
    least = min(known, key=lambda rate: rate.value or 0.0)
    held = decided(all(own.value <= rate.value for rate in known if rate.value is not None), lacks)
    words = f"{own.attack} on {own.network} ({own.method} {own}, {least.method} {least})"
    return Part(held=held, words=words, lacks=lacks)


def easy(tables: Tables) -> Iterator[Part]:
    """SOAP's networks before purification."""
    rates = [rate for case in _cases(tables) for method, rate in case.items() if method in ("dr", "rp", "lc")]
    yield mostly([_reaches(rate) for rate in rates], NEARLY_ALWAYS)


def _reaches(rate: Number) -> Part:
    held = None if rate.value is None else rate.value >= EASY
    words = "" if rate.value is None else f"{rate.attack} on {rate.network} ({rate.method} {rate})"
    return Part(held=held, words=words, lacks=lacking(rate))


def wide_lc(tables: Tables) -> Iterator[Part]:
    """DeepFool on the Wide-ResNet-28 of label consistency."""
    rate = number(tables, "table-9", "df-wide-resnet28", GROUP, "lc")
    held = None if rate.value is None else rate.value < SELDOM
    words = "" if rate.value is None else f"DeepFool succeeds on {rate} %"
    yield Part(held=held, short=rate.short, words=words, lacks=lacking(rate))


SUCCESS: dict[str, Check[Tables]] = {
    "pgd-training-resists-l2": Check(
        rule="the lowest success rate of all methods in at least half of the cases (attack and network)",
        parts=lowest_for_pgd_training,
    ),
    "easy-before-purification": Check(
        rule=f"success rate at least {EASY:g} % in at least three quarters of the cases (attack, network and task)",
        parts=easy,
    ),
    "wide-lc-resists-deepfool": Check(rule=f"success rate below {SELDOM:g} %", parts=wide_lc),
}
