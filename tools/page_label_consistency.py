"""docs/label_consistency.md: accuracy by gradient of the purification loss, from committed rows.

Beside them are numbers measured on the authors' network, from docs/label_consistency.toml, and those of Table 2.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from soap.paper.comparison import number_text
from soap.paper.sweeps import GRADIENT_ATTACKS, SWEEPS
from soap.paper.tables import NUMBER_TABLES
from soap.report import UPPER_BOUND, markdown_table
from soap.results import Row
from soap.specs import UNDEFENDED

MODEL = "cifar10-resnet18-lc"
HEAD = (
    "gradient of the purification loss", "ours: clean", "FGSM", "PGD", "final loss", "images",
    "authors' network: clean", "FGSM", "PGD", "final loss", "images",
)  # fmt: skip
COMMAND = "soap reproduce ablation-gradients --run --limit 2000 --results results/gradients.jsonl"


AuthorsLines = Mapping[str, Mapping[str, Any]]
"""By variant: the label, and the numbers measured on the authors' network."""


def read_authors(path: Path) -> AuthorsLines:
    """The lines of docs/label_consistency.toml."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def evidence(rows: Sequence[Row], authors: AuthorsLines) -> str:
    """The table, the origin of our numbers, and what is not measured yet."""
    ours = _one_run(rows)
    table = [_printed()]
    for name, line in authors.items():
        table.append([line["label"], *_ours(ours, name), *_authors(line)])
    absent = [name for name in authors if any((attack, name) not in ours for attack in GRADIENT_ATTACKS)]
    parts = [markdown_table(HEAD, table), _origin(ours), f"**{UPPER_BOUND}** {_adaptive(authors)}"]
    if absent:
        named = ", ".join(f"`{name}`" for name in absent)
        parts.append(f"**Not measured yet** on our network, in whole or in part: {named}. To measure: `{COMMAND}`.")
    return "\n\n".join(parts)


def _one_run(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Rows by attack and variant; rows of the bare network have the same weights and images as the others."""
    found = SWEEPS["gradients"].find(rows, MODEL)
    shared = {(row.attack, _subject(row)) for row in found.values()}
    bare = [row for row in rows if not row.defence.purifies and (row.attack, _subject(row)) in shared]
    return found | {(row.attack.name, UNDEFENDED): row for row in bare}


def _subject(row: Row) -> tuple[object, ...]:
    by = row.provenance
    return row.protocol, row.model, row.n, by.weights_sha256, by.data_sha256, by.images, by.seed


def _ours(rows: Mapping[tuple[str, str], Row], name: str) -> list[str]:
    own = [rows.get((attack, name)) for attack in GRADIENT_ATTACKS]
    attacked, n = own[GRADIENT_ATTACKS.index("pgd")], next((row.n for row in own if row is not None), None)
    loss = None if attacked is None else attacked.measures.get("mean_loss_after")
    shares = [None if row is None else 100 * row.accuracy for row in own]
    return [*map(number_text, shares), number_text(None) if loss is None else f"{loss:.3f}", _count(n)]


def _authors(line: Mapping[str, Any]) -> list[str]:
    shares = [line[key] for key in ("clean", "fgsm", "pgd")]
    return [*map(number_text, shares), number_text(line.get("final_loss")), _count(line["n"])]


def _printed() -> list[str]:
    """The paper's numbers for its gradient."""
    table = NUMBER_TABLES["table-2"]
    cells = [table.cells["lc-min-aux", "resnet18", attack] for attack in GRADIENT_ATTACKS]
    images = _count(table.queries[0].n)
    printed = [*(number_text(cell.printed) for cell in cells), number_text(None), images]
    return ["*printed in the paper: SOAP-LC, min-aux*", *[number_text(None)] * len(printed), *printed]


def _count(n: int | None) -> str:
    return number_text(None) if n is None else f"{n:,}"


def _origin(rows: Mapping[tuple[str, str], Row]) -> str:
    """Network, images, devices and dates of our numbers."""
    authors = (
        "The authors' network: figures measured by us on the network they published, no rows kept here "
        "(`label_consistency.toml` beside this page); the first line is what Table 2 prints."
    )
    if not rows:
        return authors
    by = [row.provenance for row in rows.values()]
    runs = sorted({f"{p.device}, commit {(p.commit or 'unknown')[:12]}, {p.date[:10]}" for p in by})
    return f"Ours: `{MODEL}`, test images {by[0].images} ({'; '.join(runs)}). {authors}"


def _adaptive(authors: AuthorsLines) -> str:
    """Accuracy of the authors' network under attacks that know the purifier."""
    left = ", ".join(f'`"{name}"` at most {line["adaptive"]} %' for name, line in authors.items() if "adaptive" in line)
    return (
        f"On 400 images of the authors' network, attacks that knew the purifier and had not converged left {left} "
        "(measured by us, no rows kept here)."
    )
