"""The README's table of results, from the rows beside the bundled weights."""

from soap import zoo
from soap.report import models_table, with_section
from soap.results import Row, Store

ATTACKS = ("none", "fgsm", "pgd", "cw", "df")
CHOICES = ("none", "min-aux")


def bundled_rows() -> list[Row]:
    """Rows of every bundled model on the whole test set, in the order of the table."""
    rows = [row for name in zoo.names() for row in Store(zoo.folder() / f"{name}.jsonl").read()]
    return sorted(
        (row for row in rows if row.n == 10_000 and row.eps_pfy in CHOICES and row.attack in ATTACKS),
        key=lambda row: (row.model, CHOICES.index(row.eps_pfy), ATTACKS.index(row.attack)),
    )


def rendered(document: str) -> str:
    """The README with its table rendered from the rows."""
    return with_section(document, "results", models_table(bundled_rows()))
