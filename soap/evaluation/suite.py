"""Evaluate a defence: by given attacks (the transfer protocol), or by a suite of adaptive attacks with checks."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from soap import validate
from soap._files import atomic
from soap._runtime import devices
from soap.attacks import Attack
from soap.data import Dataset
from soap.defence import Defence
from soap.errors import FileError, InputError, SoapError
from soap.evaluation import exports
from soap.evaluation.attempts import run_attempts
from soap.evaluation.checks import Finding, judge_checks, run_measurements
from soap.evaluation.plan import PlannedRun, Threat, plan_attempts
from soap.evaluation.run_folder import RunFolder, open_run_on
from soap.evaluation.summary import WORST, Summary, read_summary, result_rows
from soap.evaluation.transfer import Watch, evaluate_transfer
from soap.evaluation.verdict import UPPER, RobustnessVerdict, judge
from soap.results import Row, Store

DEFAULT_STEPS, QUICK_STEPS = 100, 30
"""Steps of every iterative attack by default; with 30 the quick suite takes about two minutes."""

DEFAULT_QUERIES = 1000
"""Queries of Square and of the substitute by default; AutoAttack's own Square uses 5,000."""

TRANSFER_BATCH, SUITE_BATCH = 500, 250
FINDINGS = "findings.json"
COMMAND_FACT = "asked"
"""The fact that holds what the caller wants to keep with the run, e.g. the command."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The result of an evaluation. worst_row: the row of the worst case, or of the strongest of the given attacks."""

    rows: Sequence[Row]
    worst_row: Row
    verdict: RobustnessVerdict

    @property
    def worst(self) -> float:
        """Accuracy in the worst case, in [0, 1]."""
        return self.worst_row.accuracy

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the worst case."""
        return self.worst_row.interval

    @property
    def n(self) -> int:
        """The number of images."""
        return self.worst_row.n

    def to_pandas(self) -> Any:
        """The result rows as a pandas DataFrame: counts, accuracy in [0, 1] with its 95 % interval, seconds."""
        return exports.as_pandas(self)

    def to_latex(self) -> str:
        """A booktabs table of the results, the worst case in bold; the caption states the verdict."""
        return exports.as_latex(self)

    def to_robustbench(self, **known: Any) -> dict[str, Any]:
        """The fields of a RobustBench model_info file; None where unknown. known: e.g. authors, link, venue."""
        return exports.as_robustbench(self, **known)

    def save(self, path: str | Path, *, format: str | None = None) -> None:
        """Write the report to a file; format: latex, csv, json or robustbench, by default as the name ends."""
        format = exports.format_of(str(path)) if format is None else format
        atomic.write_text(Path(path), exports.report_text(self, format))


@dataclass(frozen=True, kw_only=True, eq=False)
class SuiteReport(Report):
    """The report of a suite run, with its folder, results and the findings of the checks."""

    folder: RunFolder
    summary: Summary
    findings: Sequence[Finding]


def evaluate(
    defence: Defence,
    data: Dataset,
    *,
    suite: str = "full",
    attacks: Mapping[str, Attack] | None = None,
    eps: float | None = None,
    norm: str = "linf",
    steps: int | None = None,
    queries: int = DEFAULT_QUERIES,
    out: str | Path | None = None,
    batch: int | None = None,
    seed: int = 0,
    note: Mapping[str, object] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Report | None:
    """Measure the accuracy of a defence under attack on all images of `data`; None after a stop.

    With `attacks`, they attack the bare classifier (the transfer protocol) and the result is an upper bound on
    robustness. Otherwise a suite attacks the defence inside the ball of radius `eps` in `norm`, checks its own result,
    and keeps everything in the folder `out`; after a stop the same call resumes and ends with the same bits.

    suite: "quick", "full", or the name of a protocol. steps: of every iterative attack; by default 100, in the quick
    suite 30. queries: of Square and of the substitute. note: kept in the folder, e.g. the command.
    """
    if attacks is not None:
        return _evaluate_attacks(defence, data, attacks, batch=batch, seed=seed, out=out, watch=watch, stop=stop)
    if eps is None or out is None:
        missing = "eps, the radius of the attacks" if eps is None else "out, the folder of the run"
        raise InputError(f"suite {suite!r} needs {missing}; or give attacks={{'pgd': ...}} for the transfer protocol.")
    return evaluate_suite(
        defence,
        data,
        Threat(eps=eps, norm=norm),
        suite=suite,
        out=Path(out),
        steps=steps,
        queries=queries,
        batch=SUITE_BATCH if batch is None else batch,
        seed=seed,
        note=note,
        watch=watch,
        stop=stop,
    )


def evaluate_suite(
    defence: Defence,
    data: Dataset,
    threat: Threat,
    *,
    suite: str = "full",
    out: Path,
    steps: int | None = None,
    queries: int = DEFAULT_QUERIES,
    batch: int = SUITE_BATCH,
    seed: int = 0,
    note: Mapping[str, object] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> SuiteReport | None:
    """Attack the defence by a suite, then judge the result by the checks; None after a stop. See `evaluate`."""
    if getattr(defence.purifier, "eps", None) == "oracle":
        raise InputError("eps='oracle' needs the true label, so it is not a defence; evaluate eps='min-aux'.")
    folder = RunFolder(out)
    steps = default_steps(suite) if steps is None else steps
    validate.inputs(data.x, defence.classifier)
    sizes = {"steps": steps, "queries": queries, "classes": defence.classes(data.x)}
    attempts = plan_attempts(defence, threat, suite, images=data.x.ndim == 4, **sizes)
    run = PlannedRun(defence=defence, data=data, threat=threat, suite=suite, attempts=attempts, batch=batch, seed=seed)
    folder.begin(run.content)
    if folder.read_fingerprints() is None:
        folder.note_continuation(run.content["provenance"])
    if note is not None:
        folder.write_fact(COMMAND_FACT, dict(note))
    with devices.cudnn_deterministic():
        summary = run_attempts(run, folder, watch=watch, stop=stop)
        if summary is None or not run_measurements(run, folder, summary, watch=watch, stop=stop):
            return None
    folder.write_fingerprints(summary.fingerprints)
    report = _judged(folder, summary)
    store = Store(folder.rows)
    known = {(row.attack, row.defence) for row in store.read()}
    for row in report.rows:
        if (row.attack, row.defence) not in known:
            store.append(row)
    content = {"verdict": asdict(report.verdict), "findings": [asdict(finding) for finding in report.findings]}
    atomic.write_text(out / FINDINGS, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return report


def default_steps(suite: str) -> int:
    """Steps of every iterative attack where the caller gives none."""
    return QUICK_STEPS if suite == "quick" else DEFAULT_STEPS


def read_report(out: Path, data: Dataset) -> SuiteReport:
    """The report of the run in `out` on `data`; no model is needed.

    Checks and verdict are recomputed from batches and facts, so an edited report cannot change the verdict.
    """
    folder = open_run_on(out, data)
    try:
        return _judged(folder, read_summary(folder, data))
    except SoapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise FileError(
            f"{out}: its facts are not valid ({type(error).__name__}: {error}); remove the folder facts and run the "
            "suite again."
        ) from error


def _judged(folder: RunFolder, summary: Summary) -> SuiteReport:
    findings, rows = judge_checks(folder, summary), result_rows(summary)
    worst = next(row for row in rows if row.attack.name == WORST)  # that of the defence comes before the bare one
    return SuiteReport(
        rows=rows,
        worst_row=worst,
        verdict=judge(findings, summary),
        folder=folder,
        summary=summary,
        findings=findings,
    )


def _evaluate_attacks(
    defence: Defence,
    data: Dataset,
    attacks: Mapping[str, Attack],
    *,
    batch: int | None,
    seed: int,
    out: str | Path | None,
    watch: Watch,
    stop: Callable[[], bool],
) -> Report | None:
    """The report of the transfer protocol. out: a JSONL file for the rows."""
    if defence.classifier is None:
        raise InputError(f"{defence.name} purifies inside its forward pass; give classifier and purifier to Defence.")
    rows = evaluate_transfer(
        defence.classifier,
        data,
        attacks,
        [] if defence.purifier is None else [defence.purifier],
        store=None if out is None else Store(Path(out)),
        batch=TRANSFER_BATCH if batch is None else batch,
        seed=seed,
        watch=watch,
        stop=stop,
    )
    own = [row for row in rows if row.defence.purifies == defence.purifies]
    if len(own) < len(attacks):
        return None
    why = "transfer: the attacker does not know the purifier" if defence.purifies else "only the given attacks ran"
    verdict = RobustnessVerdict(name=UPPER, reasons=(why,))
    return Report(rows=rows, worst_row=min(own, key=lambda row: row.accuracy), verdict=verdict)
