"""Render the figures of docs/adaptive.md from the runs under results/adaptive.

python tools/render_adaptive.py
"""

import json
from dataclasses import dataclass
from pathlib import Path

from soap.evaluation.adaptive.attempts import PROTOCOLS
from soap.evaluation.adaptive.folder import CONTINUED
from soap.evaluation.adaptive.verdict import NOTHING
from soap.report import markdown_table, with_section
from soap.results import Row, Store

ROOT = Path(__file__).resolve().parents[1]
PAGE, RUNS = ROOT / "docs" / "adaptive.md", ROOT / "results" / "adaptive"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A committed run: its rows of the defence by protocol, the verdict and its reasons, by what it was made."""

    name: str
    rows: dict[str, Row]
    verdict: str
    reasons: list[str]
    made: str
    command: str

    @property
    def counts(self) -> bool:
        """Whether the worst case may be printed at all."""
        return self.verdict != NOTHING


def runs(folder: Path = RUNS) -> list[Run]:
    """All committed runs, by name."""
    return [_run(path.parent) for path in sorted(folder.glob("*/findings.json"))]


def _run(folder: Path) -> Run:
    verdict = json.loads((folder / "findings.json").read_text(encoding="utf-8"))["verdict"]
    rows = Store(folder / "rows.jsonl").read()
    defended = {row.defence for row in rows if row.defence != "none"} or {"none"}
    named = {row.attack.rpartition(": ")[2]: row for row in rows if row.defence in defended}
    return Run(
        name=folder.name,
        rows=named,
        made=origin(named["worst"], folder / "facts"),
        verdict=verdict["name"],
        reasons=verdict["reasons"],
        command=json.loads((folder / "facts" / "asked.json").read_text(encoding="utf-8"))["command"],
    )


def origin(row: Row, facts: Path) -> str:
    """Where and when a run was made and by which commits: the one that began it, and those that went on with it."""
    path, commits = facts / f"{CONTINUED}.json", [row.provenance.commit]
    if path.exists():
        commits += [other["commit"] for other in json.loads(path.read_text(encoding="utf-8"))["by"]]
    named = " and ".join(str(commit)[:7] for commit in commits)
    return f"{row.provenance.device}, commit {named}, {row.provenance.date[:10]}"


def figures(found: list[Run]) -> str:
    """A table with a column for every run, then what each verdict rests on."""
    links = [f"[{run.name}](../results/adaptive/{run.name}/report.html)" for run in found]
    measured = [name for name in PROTOCOLS if any(name in run.rows for run in found)]
    lines = [[name, *(_cell(run.rows.get(name)) for run in found)] for name in ("clean", *measured)]
    lines.append(["**worst**", *(f"**{_cell(run.rows['worst'])}**" if run.counts else "no figure" for run in found)])
    lines.append(["verdict", *(run.verdict for run in found)])
    parts = [markdown_table(["", *links], lines), "Per cent right."]
    for run in found:
        row = run.rows["worst"]
        low, high = row.interval
        worst = f"worst {100 * row.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {row.n:,} images"
        worst = worst if run.counts else "no figure"
        why = f" {'; '.join(run.reasons)}." if run.reasons else ""
        parts.append(f"**{run.name}**: {worst}, {run.verdict}.{why} {run.made}: `{run.command}`")
    return "\n\n".join(parts)


def _cell(row: Row | None) -> str:
    return "" if row is None else f"{100 * row.accuracy:.1f}"


def rendered(document: str) -> str:
    """The page with its figures as the runs have them."""
    return with_section(document, "figures", figures(runs()))


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
