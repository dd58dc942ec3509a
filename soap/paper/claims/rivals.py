"""Claims that SOAP is above other methods, or close to them: Tables 1 to 4."""

from collections.abc import Callable, Iterator, Sequence

from soap.paper.verdicts.numbers import ROUNDING, Tables, above, lacking, number
from soap.paper.verdicts.parts import Check, Part

FAR, EQUAL = 10.0, 1.0
"""Points; the second is about the 95 % interval of a share of 10,000 images."""
CLOSE, CLOSE_UNDER_ATTACK = 3.0, 10.0
"""Points; the paper calls 8.6 points close under attack."""

AT = ("fgsm-at", "pgd-at")
GAN, PIXELS = "defense-gan", "pixel-defend"
LINF, L2 = ("fgsm", "pgd"), ("cw", "df")
SMALL, LARGE = "resnet18", "wide-resnet28"
BLACK_BOX = ("fcn", "cnn")

Parts = Callable[[Tables], Iterator[Part]]


def contest(
    table: str, row: str, rivals: Sequence[str], *, groups: Sequence[str], columns: Sequence[str], by: float
) -> Parts:
    """Whether the row is `by` points above every rival, for each group and column."""

    def parts(tables: Tables) -> Iterator[Part]:
        for group in groups:
            for column in columns:
                others = [number(tables, table, rival, group, column) for rival in rivals]
                yield above(number(tables, table, row, group, column), others, by)

    return parts


def at_least(table: str, row: str, least: float, *, groups: Sequence[str], column: str) -> Parts:
    """Whether the row reaches `least` per cent, for each group."""

    def parts(tables: Tables) -> Iterator[Part]:
        for group in groups:
            ours = number(tables, table, row, group, column)
            held = None if ours.value is None else ours.value >= least - ROUNDING
            words = "" if ours.value is None else f"{ours.attack} {ours}, {least:g} wanted"
            subject = f"{ours.network}, {ours.method}"
            yield Part(held=held, short=ours.short, subject=subject, words=words, lacks=lacking(ours))

    return parts


def together(*several: Parts) -> Parts:
    """All of their parts."""
    return lambda tables: (part for parts in several for part in parts(tables))


RIVALS: dict[str, Check[Tables]] = {
    "above-purifiers": Check(
        rule="SOAP-DR above Defense-GAN and SOAP-LC above Pixel-Defend, under each attack",
        parts=together(
            contest("table-1", "dr-min-aux", [GAN], groups=["fcn", "cnn"], columns=LINF + L2, by=0.0),
            contest("table-2", "lc-min-aux", [PIXELS], groups=[SMALL, LARGE], columns=LINF + L2, by=0.0),
        ),
    ),
    "fcn-above-adversarial-training": Check(
        rule="above FGSM AT and PGD AT, under each attack",
        parts=contest("table-1", "dr-min-aux", AT, groups=["fcn"], columns=LINF + L2, by=0.0),
    ),
    "cnn-above-fgsm-training": Check(
        rule="above FGSM AT under FGSM and under PGD",
        parts=contest("table-1", "dr-min-aux", ["fgsm-at"], groups=["cnn"], columns=LINF, by=0.0),
    ),
    "cnn-near-pgd-training": Check(
        rule=f"at most {CLOSE_UNDER_ATTACK:g} points below PGD AT under FGSM and under PGD",
        parts=contest("table-1", "dr-min-aux", ["pgd-at"], groups=["cnn"], columns=LINF, by=-CLOSE_UNDER_ATTACK),
    ),
    "cnn-near-defense-gan": Check(
        rule=f"at most {CLOSE_UNDER_ATTACK:g} points below Defense-GAN under FGSM and under PGD",
        parts=contest("table-1", "dr-min-aux", [GAN], groups=["cnn"], columns=LINF, by=-CLOSE_UNDER_ATTACK),
    ),
    "best-clean-accuracy": Check(
        rule="not below FGSM AT, PGD AT and Defense-GAN on either network; No Def is no defence",
        parts=contest("table-1", "dr-min-aux", (*AT, GAN), groups=["fcn", "cnn"], columns=["none"], by=0.0),
    ),
    "rp-above-pixel-defend": Check(
        rule="above Pixel-Defend under PGD, CW and DF",
        parts=contest("table-2", "rp-min-aux", [PIXELS], groups=[SMALL], columns=("pgd", *L2), by=0.0),
    ),
    "rp-above-pgd-training-in-l2": Check(
        rule="above PGD AT under CW and DF",
        parts=contest("table-2", "rp-min-aux", ["pgd-at"], groups=[SMALL], columns=L2, by=0.0),
    ),
    "rp-best-on-wide-network": Check(
        rule=f"at most {EQUAL:g} point below FGSM AT, PGD AT and Pixel-Defend, under each attack",
        parts=contest("table-2", "rp-min-aux", (*AT, PIXELS), groups=[LARGE], columns=LINF + L2, by=-EQUAL),
    ),
    "lc-above-all": Check(
        rule="above FGSM AT, PGD AT and Pixel-Defend, under each attack",
        parts=contest("table-2", "lc-min-aux", (*AT, PIXELS), groups=[SMALL, LARGE], columns=LINF + L2, by=0.0),
    ),
    "half-right-under-pgd": Check(
        rule="SOAP-LC at least 50 % under PGD, and about ten points (at least 9) above PGD AT, on both networks",
        parts=together(
            at_least("table-2", "lc-min-aux", 50.0, groups=[SMALL, LARGE], column="pgd"),
            contest("table-2", "lc-min-aux", ["pgd-at"], groups=[SMALL, LARGE], columns=["pgd"], by=9.0),
        ),
    ),
    "far-above-in-l2": Check(
        rule=f"SOAP-RP and SOAP-LC at least {FAR:g} points above FGSM AT and PGD AT under CW and DF, on both networks",
        parts=together(
            contest("table-2", "rp-min-aux", AT, groups=[SMALL, LARGE], columns=L2, by=FAR),
            contest("table-2", "lc-min-aux", AT, groups=[SMALL, LARGE], columns=L2, by=FAR),
        ),
    ),
    "cifar100-rp": Check(
        rule="above PGD AT",
        parts=together(
            contest("table-3", "rp-min-aux", ["pgd-at"], groups=[LARGE], columns=["pgd"], by=0.0),
            contest("table-3", "rp-min-aux", ["pgd-at"], groups=[SMALL, LARGE], columns=L2, by=0.0),
        ),
    ),
    "cifar100-lc": Check(
        rule="above FGSM AT and PGD AT, under each attack",
        parts=contest("table-3", "lc-min-aux", AT, groups=[SMALL, LARGE], columns=LINF + L2, by=0.0),
    ),
    "black-box-fcn": Check(
        rule=f"at least {FAR:g} points above FGSM AT and PGD AT, for either substitute",
        parts=contest("table-4", "dr-min-aux", AT, groups=["fcn"], columns=BLACK_BOX, by=FAR),
    ),
    "black-box-cnn": Check(
        rule=f"not below FGSM AT, and at most {CLOSE:g} points below PGD AT, for either substitute",
        parts=together(
            contest("table-4", "dr-min-aux", ["fgsm-at"], groups=["cnn"], columns=BLACK_BOX, by=0.0),
            contest("table-4", "dr-min-aux", ["pgd-at"], groups=["cnn"], columns=BLACK_BOX, by=-CLOSE),
        ),
    ),
}
