"""docs/adaptive.md: results of the adaptive suite, from the committed runs in results/adaptive."""

import json
from dataclasses import dataclass
from pathlib import Path

from soap.evaluation.plan import PROTOCOLS
from soap.evaluation.run_folder import CONTINUED
from soap.evaluation.verdict import NOTHING
from soap.report import markdown_table, percent, with_section
from soap.results import Row, Store


@dataclass(frozen=True, kw_only=True)
class CommittedRun:
    """A committed run: rows of the defence by protocol, verdict with reasons, origin and command."""

    name: str
    rows: dict[str, Row]
    verdict: str
    reasons: list[str]
    origin: str
    command: str

    @property
    def counts(self) -> bool:
        """Whether the worst case is a valid number."""
        return self.verdict != NOTHING


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
        origin=origin(named["worst"], facts),
        verdict=verdict["name"],
        reasons=verdict["reasons"],
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
    lines = [[name, *(_cell(run.rows.get(name)) for run in found)] for name in ("clean", *measured)]
    lines.append(["**worst**", *(f"**{_cell(run.rows['worst'])}**" if run.counts else "no number" for run in found)])
    lines.append(["verdict", *(run.verdict for run in found)])
    parts = [markdown_table(["", *links], lines), "Correctly classified, per cent."]
    for run in found:
        row = run.rows["worst"]
        share = percent(row).replace(" ", " % ", 1)
        worst = f"worst {share} of {row.n:,} images" if run.counts else "no number"
        why = f" {'; '.join(run.reasons)}." if run.reasons else ""
        parts.append(f"**{run.name}**: {worst}, {run.verdict}.{why} {run.origin}: `{run.command}`")
    return "\n\n".join(parts)


def _cell(row: Row | None) -> str:
    return "" if row is None else f"{100 * row.accuracy:.1f}"


def rendered(document: str, results: Path) -> str:
    """The page with its numbers rendered from the runs in `results`/adaptive."""
    return with_section(document, "figures", results_section(committed_runs(results / "adaptive")))
