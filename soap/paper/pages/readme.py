"""README.md and docs/models.md: results of the bundled models, from their rows and the runs of the suite."""

from collections.abc import Sequence
from pathlib import Path

from soap import zoo
from soap.paper.pages.adaptive import CommittedRun, committed_runs
from soap.report import markdown_table, models_table, with_section
from soap.report.accuracy import percent
from soap.report.row_text import eps_text, gradient_text
from soap.results import Row, Store

TEST_IMAGES = 10_000
ATTACKS = ("none", "fgsm", "pgd", "cw", "df")
EPS_CHOICES = ("none", "min-aux")
HEAD = ("model", "purifier", "clean", "PGD, transfer", "worst case", "verdict")
SECTION = "results"


def bundled_rows() -> list[Row]:
    """Rows of every bundled model on the whole test set, in the order of the table of docs/models.md."""
    rows = [row for name in zoo.names() for row in Store(zoo.folder() / f"{name}.jsonl").read()]
    wanted = [
        row
        for row in rows
        if row.n == TEST_IMAGES and eps_text(row.defence) in EPS_CHOICES and row.attack.name in ATTACKS
    ]
    return sorted(
        wanted,
        key=lambda row: (row.model, EPS_CHOICES.index(eps_text(row.defence)), ATTACKS.index(row.attack.name)),
    )


def evaluated_models_table(rows: Sequence[Row], runs: Sequence[CommittedRun]) -> str:
    """One line a run of the suite: accuracy on clean images, under transferred PGD, and in the worst case."""
    return markdown_table(HEAD, [_line(rows, run) for run in runs])


def _line(rows: Sequence[Row], run: CommittedRun) -> list[str]:
    worst = run.rows["worst"]
    own = {row.attack.name: row for row in rows if (row.model, row.defence) == (worst.model, worst.defence)}
    purifier = f"{worst.defence.name}{gradient_text(worst.defence)}"
    transfer = [percent(own[attack]) if attack in own else "" for attack in ("none", "pgd")]
    bound = f"**{percent(worst)}**, n = {worst.n:,}" if run.counts else "no number"
    return [f"`{worst.model}`", purifier, *transfer, bound, run.verdict]


def rendered_readme(document: str, results: Path) -> str:
    """The README with its table rendered from the bundled rows and the runs in `results`/adaptive."""
    table = evaluated_models_table(bundled_rows(), committed_runs(results / "adaptive"))
    return with_section(document, SECTION, table)


def rendered_models(document: str) -> str:
    """docs/models.md with its table rendered from the bundled rows."""
    return with_section(document, SECTION, models_table(bundled_rows()))
