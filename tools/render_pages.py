"""Render pages of docs/ and the worst cases of the web page from committed rows: part of `make render`."""

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import export_page
import libraries_table

from soap.paper.pages.suite_runs import committed_runs
from soap.report import markdown_table, with_section
from soap.results import Row, Store

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
WORST_CASES = ROOT / "soap" / "serve" / "static" / "adaptive.json"

DETECTION_HEAD = (
    "model", "score", "attack", "adaptive", "rule", "AUROC", "FPR, %", "TPR, %", "clean and accepted, %",
    "robust with rejection, %", "adversarial",
)  # fmt: skip
NO_DETECTION = "*No rows yet: run `soap detect MODEL --out results/detection.jsonl` and `make render`.*"

RELIABILITY_HEAD = ("promise", "trials", "failures", "test", "date", "source")
RELIABILITY_FIELDS = {"promise", "test", "trials", "failures", "date", "commit"}

SERVICE_HEAD = (
    "server", "model", "operation", "clients", "seconds", "batches", "requests", "errors", "requests/s", "p50, ms",
    "p99, ms", "against one at a time",
)  # fmt: skip
EARLIER_SERVER = "uvicorn"
"""The server of rows that name none."""

EARLIER_NOTE = (
    "**Rows marked uvicorn were measured with the earlier server.** The service now runs on granian, whose throughput "
    "and latency may differ."
)
BATCHES = {"batched": "up to {batch_size}", "single": "one at a time"}
NO_SERVICE = "*No rows yet: run `python tools/load_service.py` and `make render`.*"

JsonRow = dict[str, Any]


def detection_table(rows: Sequence[Row]) -> str:
    """One line for each row of `soap detect --out`, the latest of equal measurements, and a line for each run."""
    if not rows:
        return NO_DETECTION
    latest = list({row.key: row for row in rows}.values())
    lines = [_detection_line(row) for row in latest]
    return "\n\n".join([markdown_table(DETECTION_HEAD, lines), "\n".join(dict.fromkeys(map(_detection_run, latest)))])


def _detection_line(row: Row) -> list[str]:
    reject, rule, (low, high) = row.defence.settings["reject"], row.attack.steps[0].rule, row.interval
    found = row.measures
    return [
        f"`{row.model}`",
        reject["score"],
        row.attack.name,
        "no" if rule is None else "yes",
        rule or "",
        f"{found['auroc']:.3f}" if "auroc" in found else "",
        f"{100 * reject['fpr']:g}",
        f"{100 * found['tpr']:.1f}" if "tpr" in found else "",
        f"{100 * found['clean_accuracy']:.1f}",
        f"{100 * row.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
        f"{found['n_adversarial']:,.0f} of {row.n:,}",
    ]


def _detection_run(row: Row) -> str:
    p, settings = row.provenance, row.attack.steps[0].settings
    return (
        f"- `{row.model}`: {row.n:,} images of {row.data}, eps {settings['eps']:.4g}, {settings['steps']} steps, "
        f"{p.device}, commit {(p.commit or 'unknown')[:12]}, {p.date[:10]}, torch {p.torch}"
    )


def reliability_rows(path: Path = RESULTS / "reliability.jsonl") -> list[JsonRow]:
    """The rows of the long test runs; of rows with the same promise, the latest."""
    rows = _json_lines(path)
    for number, row in enumerate(rows, 1):
        if set(row) - {"measured"} != RELIABILITY_FIELDS or not 0 <= row["failures"] <= row["trials"]:
            raise SystemExit(f"{path}, line {number}: not a row of `make chaos`, `make fuzz` or `make stress`.")
    return list({row["promise"]: row for row in rows}.values())


def reliability_table(rows: Sequence[JsonRow]) -> str:
    """One line for each promise, and the sums."""
    if not rows:
        return "No long run has been recorded yet."
    lines = [RELIABILITY_HEAD, ("---", "---:", "---:", "---", "---", "---")]
    for row in rows:
        failures = f"**{row['failures']:,}**" if row["failures"] else "0"
        test = f"`{row['test'].partition('[')[0]}`"
        source = (row["commit"] or "unknown")[:7] + ("+" if (row["commit"] or "").endswith("+") else "")
        lines.append((_promise(row), f"{row['trials']:,}", failures, test, row["date"], source))
    trials, failures = (sum(row[name] for row in rows) for name in ("trials", "failures"))
    summary = f"{trials:,} trials, {failures:,} failures."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{summary}"


def _promise(row: JsonRow) -> str:
    """The promise, and the numbers measured with it (`measured`, whose names contain the units)."""
    measured = row.get("measured", {}).items()
    numbers = ", ".join(f"{name}: {value:,.0f}" if value >= 100 else f"{name}: {value:.3g}" for name, value in measured)
    return (row["promise"] + (f" ({numbers})" if numbers else "")).replace("|", "\\|")


def service_rows(path: Path = RESULTS / "service.jsonl") -> list[JsonRow]:
    """The rows of tools/load_service.py; of rows with equal settings and processor, the latest."""
    keys = ("model", "operation", "clients", "batch_size")
    rows = _json_lines(path)
    return list({(*(row[key] for key in keys), row["provenance"]["processor"]): row for row in rows}.values())


def service_table(rows: Sequence[JsonRow]) -> str:
    """Two lines for each row, with and without batching, and a list of the commands."""
    if not rows:
        return NO_SERVICE
    lines = []
    for row in rows:
        for way, batches in BATCHES.items():
            found = row["ways"][way]
            lines.append(
                [
                    row.get("server", EARLIER_SERVER),
                    f"`{row['model']}`",
                    row["operation"],
                    str(row["clients"]),
                    f"{row['seconds']:g}",
                    batches.format(batch_size=row["batch_size"]),
                    f"{found['requests']:,}",
                    str(found["errors"]),
                    f"{found['requests_per_second']:,.0f}",
                    f"{found['p50_ms']:,.0f}",
                    f"{found['p99_ms']:,.0f}",
                    f"**{row['ratio']:.1f} x**" if way == "batched" else "1",
                ]
            )
    earlier = [EARLIER_NOTE] if any("server" not in row for row in rows) else []
    commands = "\n".join(dict.fromkeys(map(_service_command, rows)))
    return "\n\n".join([*earlier, markdown_table(SERVICE_HEAD, lines), commands])


def _service_command(row: JsonRow) -> str:
    p = row["provenance"]
    return (
        f"- `{p['command']}`: {p['processor']}, {p['threads']} threads, commit {(p['commit'] or 'unknown')[:12]}, "
        f"{p['date'][:10]}, torch {p['torch']}, Python {p['python']}"
    )


def worst_cases() -> dict[str, dict[str, Any]]:
    """Results of the full suite for each bundled model with its default settings; none where a check failed."""
    found = {}
    for run in committed_runs(RESULTS / "adaptive"):
        row = run.rows["worst"]
        if run.name != row.model or not run.verdict.shows("worst"):
            continue
        words = shlex.split(run.command)
        found[run.name] = {
            "worst": row.accuracy,
            "interval": list(row.interval),
            "clean": run.rows["clean"].accuracy,
            "n": row.n,
            "eps": float(words[words.index("--eps") + 1]),
            "verdict": run.verdict.name,
            "date": row.provenance.date[:10],
        }
    return found


def _json_lines(path: Path) -> list[JsonRow]:
    """The rows of a JSONL file; none if it does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "detection.md": {"figures": lambda: detection_table(Store(RESULTS / "detection.jsonl").read())},
    "export.md": {
        "figures": lambda: export_page.table(export_page.committed_rows(RESULTS / "export.jsonl")),
        "ways": lambda: export_page.agreement_table(RESULTS / "attempts" / "export-agreement.jsonl"),
    },
    "purifiers.md": {"libraries": lambda: libraries_table.table(libraries_table.read())},
    "reliability.md": {"figures": lambda: reliability_table(reliability_rows())},
    "service.md": {"figures": lambda: service_table(service_rows())},
}
"""Pages of docs/: for each of their sections the function that renders its content."""


def rendered(page: str) -> str:
    """The rendered text of one of `PAGES`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for section, content in PAGES[page].items():
        text = with_section(text, section, content())
    return text


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(rendered(name), encoding="utf-8")
    WORST_CASES.write_text(json.dumps(worst_cases(), indent=1) + "\n", encoding="utf-8")
