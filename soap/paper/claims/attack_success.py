"""Claims about how often the L2 attacks succeed: Tables 8 and 9."""

from collections.abc import Iterator, Sequence

from soap.paper.claims.checks import ClaimCheck, ClaimPart, TableNumbers, mostly
from soap.paper.claims.table_numbers import TableNumber, decided, missing_of, number
from soap.paper.tables import TABLES, PaperTable

EASY_PERCENT, SELDOM_PERCENT = 95.0, 50.0
"""Success rates."""
TYPICAL_SHARE, NEARLY_ALL_SHARE = 0.5, 0.75
"""Of the cases."""

GROUP = "success"


def _cases(tables: TableNumbers) -> Iterator[dict[str, TableNumber]]:
    """Success rates by method, for every attack and network."""
    for name in ("table-8", "table-9"):
        table = TABLES[name]
        if isinstance(table, PaperTable):
            for row in table.rows:
                columns = [column.name for column in table.columns]
                yield {column: number(tables, name, row.name, GROUP, column) for column in columns}


def lowest_for_pgd_training(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Success rate on PGD adversarial training against all other methods."""
    parts = []
    for case in _cases(tables):
        own, others = case["pgd-at"], [rate for method, rate in case.items() if method != "pgd-at"]
        parts.append(_lowest(own, others))
    yield mostly(parts, TYPICAL_SHARE)


def _lowest(own: TableNumber, others: Sequence[TableNumber]) -> ClaimPart:
    missing, known = missing_of(own, *others), [rate for rate in others if rate.value is not None]
    if own.value is None or not known:
        return ClaimPart(held=None, missing=missing)
    least = min(known, key=lambda rate: rate.value or 0.0)
    held = decided(all(own.value <= rate.value for rate in known if rate.value is not None), missing)
    words = f"{own.attack} on {own.network} ({own.method} {own}, {least.method} {least})"
    return ClaimPart(held=held, words=words, missing=missing)


def easy(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Success rates on SOAP's networks before purification."""
    rates = [rate for case in _cases(tables) for method, rate in case.items() if method in ("dr", "rp", "lc")]
    yield mostly([_reaches(rate) for rate in rates], NEARLY_ALL_SHARE)


def _reaches(rate: TableNumber) -> ClaimPart:
    held = None if rate.value is None else rate.value >= EASY_PERCENT
    words = "" if rate.value is None else f"{rate.attack} on {rate.network} ({rate.method} {rate})"
    return ClaimPart(held=held, words=words, missing=missing_of(rate))


def wide_lc(tables: TableNumbers) -> Iterator[ClaimPart]:
    """Success rate of DeepFool on the Wide-ResNet-28 of label consistency."""
    rate = number(tables, "table-9", "df-wide-resnet28", GROUP, "lc")
    held = None if rate.value is None else rate.value < SELDOM_PERCENT
    words = "" if rate.value is None else f"DeepFool succeeds on {rate} %"
    yield ClaimPart(held=held, short=rate.short, words=words, missing=missing_of(rate))


SUCCESS: dict[str, ClaimCheck[TableNumbers]] = {
    "pgd-training-resists-l2": ClaimCheck(
        rule="the lowest success rate of all methods in at least half of the cases (attack and network)",
        parts=lowest_for_pgd_training,
    ),
    "easy-before-purification": ClaimCheck(
        rule=f"success rate at least {EASY_PERCENT:g} % in at least three quarters of the cases (attack, network "
        "and task)",
        parts=easy,
    ),
    "wide-lc-resists-deepfool": ClaimCheck(rule=f"success rate below {SELDOM_PERCENT:g} %", parts=wide_lc),
}
