"""Claims that SOAP is above other methods, or close to them: Tables 1 to 4."""

from collections.abc import Callable, Iterator, Sequence

from soap.paper.claims.checks import ClaimCheck, ClaimPart, TableNumbers
from soap.paper.claims.table_numbers import ROUNDING_POINTS, above, missing_of, number

FAR_POINTS, EQUAL_POINTS = 10.0, 1.0
"""The second is about the 95 % interval of an accuracy on 10,000 images."""
CLOSE_POINTS, CLOSE_UNDER_ATTACK_POINTS = 3.0, 10.0
"""The paper calls a difference of 8.6 points under attack close."""

AT = ("fgsm-at", "pgd-at")
GAN, PIXELS = "defense-gan", "pixel-defend"
LINF, L2 = ("fgsm", "pgd"), ("cw", "df")
SMALL, LARGE = "resnet18", "wide-resnet28"
BLACK_BOX = ("fcn", "cnn")

PartsOfTables = Callable[[TableNumbers], Iterator[ClaimPart]]


def rivalry(
    table: str, row: str, rivals: Sequence[str], *, groups: Sequence[str], columns: Sequence[str], by: float
) -> PartsOfTables:
    """Parts: the row is at least `by` points above every rival, for each group and column."""

    def parts(tables: TableNumbers) -> Iterator[ClaimPart]:
        for group in groups:
            for column in columns:
                others = [number(tables, table, rival, group, column) for rival in rivals]
                yield above(number(tables, table, row, group, column), others, by)

    return parts


def at_least(table: str, row: str, least: float, *, groups: Sequence[str], column: str) -> PartsOfTables:
    """Parts: the row reaches at least `least` per cent, for each group."""

    def parts(tables: TableNumbers) -> Iterator[ClaimPart]:
        for group in groups:
            ours = number(tables, table, row, group, column)
            held = None if ours.value is None else ours.value >= least - ROUNDING_POINTS
            words = "" if ours.value is None else f"{ours.attack} {ours}, {least:g} wanted"
            subject = f"{ours.network}, {ours.method}"
            yield ClaimPart(held=held, short=ours.short, subject=subject, words=words, missing=missing_of(ours))

    return parts


def together(*several: PartsOfTables) -> PartsOfTables:
    """The parts of several checks in one list."""
    return lambda tables: (part for parts in several for part in parts(tables))


RIVALS: dict[str, ClaimCheck[TableNumbers]] = {
    "above-purifiers": ClaimCheck(
        rule="SOAP-DR above Defense-GAN and SOAP-LC above Pixel-Defend, under each attack",
        parts=together(
            rivalry("table-1", "dr-min-aux", [GAN], groups=["fcn", "cnn"], columns=LINF + L2, by=0.0),
            rivalry("table-2", "lc-min-aux", [PIXELS], groups=[SMALL, LARGE], columns=LINF + L2, by=0.0),
        ),
    ),
    "fcn-above-adversarial-training": ClaimCheck(
        rule="above FGSM AT and PGD AT, under each attack",
        parts=rivalry("table-1", "dr-min-aux", AT, groups=["fcn"], columns=LINF + L2, by=0.0),
    ),
    "cnn-above-fgsm-training": ClaimCheck(
        rule="above FGSM AT under FGSM and under PGD",
        parts=rivalry("table-1", "dr-min-aux", ["fgsm-at"], groups=["cnn"], columns=LINF, by=0.0),
    ),
    "cnn-near-pgd-training": ClaimCheck(
        rule=f"at most {CLOSE_UNDER_ATTACK_POINTS:g} points below PGD AT under FGSM and under PGD",
        parts=rivalry("table-1", "dr-min-aux", ["pgd-at"], groups=["cnn"], columns=LINF, by=-CLOSE_UNDER_ATTACK_POINTS),
    ),
    "cnn-near-defense-gan": ClaimCheck(
        rule=f"at most {CLOSE_UNDER_ATTACK_POINTS:g} points below Defense-GAN under FGSM and under PGD",
        parts=rivalry("table-1", "dr-min-aux", [GAN], groups=["cnn"], columns=LINF, by=-CLOSE_UNDER_ATTACK_POINTS),
    ),
    "best-clean-accuracy": ClaimCheck(
        rule="not below FGSM AT, PGD AT and Defense-GAN on either network; No Def is no defence",
        parts=rivalry("table-1", "dr-min-aux", (*AT, GAN), groups=["fcn", "cnn"], columns=["none"], by=0.0),
    ),
    "rp-above-pixel-defend": ClaimCheck(
        rule="above Pixel-Defend under PGD, CW and DF",
        parts=rivalry("table-2", "rp-min-aux", [PIXELS], groups=[SMALL], columns=("pgd", *L2), by=0.0),
    ),
    "rp-above-pgd-training-in-l2": ClaimCheck(
        rule="above PGD AT under CW and DF",
        parts=rivalry("table-2", "rp-min-aux", ["pgd-at"], groups=[SMALL], columns=L2, by=0.0),
    ),
    "rp-best-on-wide-network": ClaimCheck(
        rule=f"at most {EQUAL_POINTS:g} point below FGSM AT, PGD AT and Pixel-Defend, under each attack",
        parts=rivalry("table-2", "rp-min-aux", (*AT, PIXELS), groups=[LARGE], columns=LINF + L2, by=-EQUAL_POINTS),
    ),
    "lc-above-all": ClaimCheck(
        rule="above FGSM AT, PGD AT and Pixel-Defend, under each attack",
        parts=rivalry("table-2", "lc-min-aux", (*AT, PIXELS), groups=[SMALL, LARGE], columns=LINF + L2, by=0.0),
    ),
    "half-right-under-pgd": ClaimCheck(
        rule="SOAP-LC at least 50 % under PGD, and about ten points (at least 9) above PGD AT, on both networks",
        parts=together(
            at_least("table-2", "lc-min-aux", 50.0, groups=[SMALL, LARGE], column="pgd"),
            rivalry("table-2", "lc-min-aux", ["pgd-at"], groups=[SMALL, LARGE], columns=["pgd"], by=9.0),
        ),
    ),
    "far-above-in-l2": ClaimCheck(
        rule=f"SOAP-RP and SOAP-LC at least {FAR_POINTS:g} points above FGSM AT and PGD AT under CW and DF, on both "
        "networks",
        parts=together(
            rivalry("table-2", "rp-min-aux", AT, groups=[SMALL, LARGE], columns=L2, by=FAR_POINTS),
            rivalry("table-2", "lc-min-aux", AT, groups=[SMALL, LARGE], columns=L2, by=FAR_POINTS),
        ),
    ),
    "cifar100-rp": ClaimCheck(
        rule="above PGD AT",
        parts=together(
            rivalry("table-3", "rp-min-aux", ["pgd-at"], groups=[LARGE], columns=["pgd"], by=0.0),
            rivalry("table-3", "rp-min-aux", ["pgd-at"], groups=[SMALL, LARGE], columns=L2, by=0.0),
        ),
    ),
    "cifar100-lc": ClaimCheck(
        rule="above FGSM AT and PGD AT, under each attack",
        parts=rivalry("table-3", "lc-min-aux", AT, groups=[SMALL, LARGE], columns=LINF + L2, by=0.0),
    ),
    "black-box-fcn": ClaimCheck(
        rule=f"at least {FAR_POINTS:g} points above FGSM AT and PGD AT, for either substitute",
        parts=rivalry("table-4", "dr-min-aux", AT, groups=["fcn"], columns=BLACK_BOX, by=FAR_POINTS),
    ),
    "black-box-cnn": ClaimCheck(
        rule=f"not below FGSM AT, and at most {CLOSE_POINTS:g} points below PGD AT, for either substitute",
        parts=together(
            rivalry("table-4", "dr-min-aux", ["fgsm-at"], groups=["cnn"], columns=BLACK_BOX, by=0.0),
            rivalry("table-4", "dr-min-aux", ["pgd-at"], groups=["cnn"], columns=BLACK_BOX, by=-CLOSE_POINTS),
        ),
    ),
}
