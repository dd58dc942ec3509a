"""Render the evidence of docs/label_consistency.md from the committed result rows; beside them the figures measured on
the authors' network, from docs/label_consistency.toml, and the printed ones of Table 2.

    python tools/render_label_consistency.py
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from soap import paper
from soap.evaluation.gradient_evidence import ATTACKS
from soap.evaluation.swept import BARE, by_gradient
from soap.report import UPPER_BOUND, markdown_table, with_section
from soap.report.comparison_words import figure
from soap.results import Row

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, LINES = DOCS / "label_consistency.md", DOCS / "label_consistency.toml"
MODEL = "cifar10-resnet18-lc"
HEAD = (
    "gradient of the purification loss", "ours: clean", "FGSM", "PGD", "final loss", "images",
    "authors' network: clean", "FGSM", "PGD", "final loss", "images",
)  # fmt: skip
COMMAND = "soap reproduce ablation-gradients --run --limit 2000 --results results/gradients.jsonl"


def lines() -> dict[str, dict[str, Any]]:
    """The lines of the table by variant: words, and the figures measured on the authors' network."""
    return tomllib.loads(LINES.read_text(encoding="utf-8"))


def evidence(rows: Sequence[Row]) -> str:
    """The table, then where ours come from and what is not measured yet."""
    ours = _one_run(rows)
    table = [_printed()]
    for name, line in lines().items():
        table.append([line["label"], *_ours(ours, name), *_authors(line)])
    absent = [name for name in lines() if any((attack, name) not in ours for attack in ATTACKS)]
    parts = [markdown_table(HEAD, table), _origin(ours), f"**{UPPER_BOUND}** {_adaptive()}"]
    if absent:
        named = ", ".join(f"`{name}`" for name in absent)
        parts.append(f"**Not measured yet** on our network, in whole or in part: {named}. To measure: `{COMMAND}`.")
    return "\n\n".join(parts)


def rendered(document: str, rows: Sequence[Row]) -> str:
    """The page with its evidence as the rows have it."""
    return with_section(document, "evidence", evidence(rows))


def _one_run(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """By attack and variant; the rows that are not purified are those of the same weights and images."""
    found = by_gradient(rows, MODEL)
    shared = {(row.settings, _subject(row)) for row in found.values()}
    bare = [row for row in rows if row.defence == BARE and (row.settings, _subject(row)) in shared]
    return found | {(row.attack, BARE): row for row in bare}


def _subject(row: Row) -> tuple[object, ...]:
    by = row.provenance
    return row.protocol, row.model, row.n, by.weights_sha256, by.data_sha256, by.images, by.seed


def _ours(rows: Mapping[tuple[str, str], Row], name: str) -> list[str]:
    own = [rows.get((attack, name)) for attack in ATTACKS]
    attacked, n = own[ATTACKS.index("pgd")], next((row.n for row in own if row is not None), None)
    loss = None if attacked is None else attacked.measures.get("mean_loss_after")
    shares = [None if row is None else 100 * row.accuracy for row in own]
    return [*map(figure, shares), figure(None) if loss is None else f"{loss:.3f}", _count(n)]


def _authors(line: Mapping[str, Any]) -> list[str]:
    shares = [line[key] for key in ("clean", "fgsm", "pgd")]
    return [*map(figure, shares), figure(line.get("final_loss")), _count(line["n"])]


def _printed() -> list[str]:
    """The paper's own figures for its own gradient."""
    cells = [paper.TABLES["table-2"].cells["lc-min-aux", "resnet18", attack] for attack in ATTACKS]
    printed = [*(figure(cell.printed) for cell in cells), figure(None), _count(cells[0].wanted.n)]
    return ["*printed in the paper: SOAP-LC, min-aux*", *[figure(None)] * len(printed), *printed]


def _count(n: int | None) -> str:
    return figure(None) if n is None else f"{n:,}"


def _origin(rows: Mapping[tuple[str, str], Row]) -> str:
    """The network, images, devices and dates of our figures."""
    authors = (
        "The authors' network: figures measured by us on the network they published, no rows kept here "
        "(`label_consistency.toml` beside this page); the first line is what Table 2 prints."
    )
    if not rows:
        return authors
    by = [row.provenance for row in rows.values()]
    told = sorted({f"{p.device}, commit {(p.commit or 'unknown')[:12]}, {p.date[:10]}" for p in by})
    return f"Ours: `{MODEL}`, test images {by[0].images} ({'; '.join(told)}). {authors}"


def _adaptive() -> str:
    """What attacks that know the purifier leave of the authors' network."""
    left = ", ".join(f'`"{name}"` at most {line["adaptive"]} %' for name, line in lines().items() if "adaptive" in line)
    return (
        f"On 400 images of the authors' network, attacks that knew the purifier and had not converged left {left} "
        "(measured by us, no rows kept here)."
    )


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), paper.committed_rows()), encoding="utf-8")
    print(PAGE)
