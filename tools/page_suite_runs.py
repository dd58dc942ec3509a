"""Results of the adaptive suite, from the committed runs in results/adaptive, and of the bundled models.

docs/adaptive.md has the runs, docs/models.md the bundled models' rows, README.md both.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from soap import zoo
from soap.evaluation.protocols import PROTOCOLS
from soap.evaluation.run_folder import CONTINUED
from soap.evaluation.summary import CLEAN, WORST
from soap.evaluation.verdict import RobustnessVerdict
from soap.report import markdown_table, models_table, percent
from soap.report.row_text import eps_text, gradient_text
from soap.results import Row, Store

TEST_IMAGES = 10_000
ATTACKS = ("none", "fgsm", "pgd", "cw", "df")
EPS_CHOICES = ("none", "min-aux")
ABSENT = "\N{EN DASH}"
"""In place of a result that was not measured, or that is not shown because a check failed."""

HEAD = ("model", "purifier", "clean", "PGD, transfer", "worst case", "verdict")


@dataclass(frozen=True, kw_only=True)
class CommittedRun:
    """A committed run: rows of the defence by protocol, verdict, origin and command."""

    name: str
    rows: dict[str, Row]
    verdict: RobustnessVerdict
    origin: str
    command: str

    def text(self, protocol: str) -> str:
        """Accuracy after a protocol in per cent, that of the worst case with interval and n; empty without a row.

        A dash where a check failed.
        """
        row = self.rows.get(protocol)
        if row is None:
            return ""
        if not self.verdict.shows(protocol):
            return ABSENT
        return f"{percent(row)}, n = {row.n:,}" if protocol == WORST else f"{100 * row.accuracy:.1f}"


def committed_runs(folder: Path) -> list[CommittedRun]:
    """All runs in results/adaptive, by name."""
    return [read_run(path.parent) for path in sorted(folder.glob("*/findings.json"))]


def read_run(folder: Path) -> CommittedRun:
    """The run in a folder; of runs on purifiers other than SOAP the facts are kept beside the rows."""
    facts = folder / "facts" if (folder / "facts").is_dir() else folder
    verdict = json.loads((folder / "findings.json").read_text(encoding="utf-8"))["verdict"]
    rows = Store(folder / "rows.jsonl").read()
    purifies = any(row.defence.purifies for row in rows)
    named = {row.attack.name: row for row in rows if row.defence.purifies == purifies}
    return CommittedRun(
        name=folder.name,
        rows=named,
        origin=origin(named[WORST], facts),
        verdict=RobustnessVerdict(name=verdict["name"], reasons=tuple(verdict["reasons"])),
        command=json.loads((facts / "asked.json").read_text(encoding="utf-8"))["command"],
    )


def origin(row: Row, facts: Path) -> str:
    """Device, commits and date of a run: the commit that started it, and those that resumed it."""
    path, commits = facts / f"{CONTINUED}.json", [row.provenance.commit]
    if path.exists():
        commits += [other["commit"] for other in json.loads(path.read_text(encoding="utf-8"))["by"]]
    named = " and ".join(str(commit)[:7] for commit in commits)
    return f"{row.provenance.device}, commit {named}, {row.provenance.date[:10]}"


def results_section(found: list[CommittedRun]) -> str:
    """A table with a column for every run, then the reasons for each verdict."""
    links = [f"[{run.name}](../results/adaptive/{run.name}/findings.json)" for run in found]
    measured = [name for name in PROTOCOLS if any(name in run.rows for run in found)]
    lines = [[name, *(run.text(name) for run in found)] for name in (CLEAN, *measured)]
    lines.append(["**worst**", *(f"**{run.text(WORST)}**" for run in found)])
    lines.append(["verdict", *(run.verdict.name for run in found)])
    legend = "Correctly classified, per cent; the worst case with its 95 % interval and number of images."
    parts = [markdown_table(["", *links], lines), legend]
    for run in found:
        worst = f"worst {run.text(WORST).replace(' ', ' % ', 1)}, " if run.verdict.shows(WORST) else ""
        why = run.verdict.note or "; ".join(run.verdict.reasons)
        sentence = f" {why.removesuffix('.')}." if why else ""
        parts.append(f"**{run.name}**: {worst}{run.verdict.name}.{sentence} {run.origin}: `{run.command}`")
    return "\n\n".join(parts)


def worst_cases_json(found: list[CommittedRun]) -> str:
    """Worst cases of bundled models with their default settings, for the page of `soap serve`; none a check hides."""
    worst = {}
    for run in found:
        row, words = run.rows[WORST], shlex.split(run.command)
        if run.name == row.model and run.verdict.shows(WORST):
            worst[run.name] = {
                "worst": row.accuracy,
                "interval": list(row.interval),
                "clean": run.rows[CLEAN].accuracy,
                "n": row.n,
                "eps": float(words[words.index("--eps") + 1]),
                "verdict": run.verdict.name,
                "date": row.provenance.date[:10],
            }
    return json.dumps(worst, indent=1) + "\n"


# --- README.md and docs/models.md -------------------------------------------------------------------------------------


def bundled_rows() -> list[Row]:
    """Rows of every bundled model on the whole test set, in the order of the table of docs/models.md."""
    rows = [row for name in zoo.names() for row in Store(zoo.folder() / f"{name}.jsonl").read()]
    wanted = [
        row
        for row in rows
        if row.n == TEST_IMAGES and eps_text(row.defence) in EPS_CHOICES and row.attack.name in ATTACKS
    ]
    return sorted(
        wanted, key=lambda row: (row.model, EPS_CHOICES.index(eps_text(row.defence)), ATTACKS.index(row.attack.name))
    )


def evaluated_models_table(rows: Sequence[Row], runs: Sequence[CommittedRun]) -> str:
    """One line a run of the suite: accuracy on clean images, under transferred PGD, and in the worst case."""
    return markdown_table(HEAD, [_line(rows, run) for run in runs])


def _line(rows: Sequence[Row], run: CommittedRun) -> list[str]:
    worst = run.rows[WORST]
    own = {row.attack.name: row for row in rows if (row.model, row.defence) == (worst.model, worst.defence)}
    purifier = f"{worst.defence.name}{gradient_text(worst.defence)}"
    transfer = [percent(own[attack]) if attack in own else "" for attack in ("none", "pgd")]
    return [f"`{worst.model}`", purifier, *transfer, f"**{run.text(WORST)}**", run.verdict.name]


def bundled_models_table() -> str:
    """The table of docs/models.md."""
    return models_table(bundled_rows())
