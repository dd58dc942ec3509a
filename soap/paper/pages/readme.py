"""Render the README's table of results from the rows beside the bundled weights.

python tools/render_readme.py
"""

from pathlib import Path

import soap
from soap.report import models_table, with_section
from soap.results import Row, Store

README = Path(__file__).resolve().parents[1] / "README.md"
ATTACKS = ("none", "fgsm", "pgd", "cw", "df")
CHOICES = ("none", "min-aux")


def bundled_rows() -> list[Row]:
    """The full-test-set rows of every bundled model, in the order of the table."""
    rows = [row for name in soap.zoo.names() for row in Store(soap.zoo.folder() / f"{name}.jsonl").read()]
    return sorted(
        (row for row in rows if row.n == 10_000 and row.eps_pfy in CHOICES and row.attack in ATTACKS),
        key=lambda row: (row.model, CHOICES.index(row.eps_pfy), ATTACKS.index(row.attack)),
    )


def rendered(document: str) -> str:
    """The README with its results as the rows have them."""
    return with_section(document, "results", models_table(bundled_rows()))


if __name__ == "__main__":
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
