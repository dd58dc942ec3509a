"""Evaluate a defence: by given attacks (the transfer protocol), or by a suite of adaptive attacks with checks."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from soap._files import atomic
from soap._runtime import devices, distributed
from soap._runtime.allocator import kept_memory
from soap._runtime.progress import progress_bar
from soap.attacks import Attack
from soap.data import Dataset
from soap.defence import Defence
from soap.errors import FileError, InputError, SoapError
from soap.evaluation import exports
from soap.evaluation.attempts import run_attempts
from soap.evaluation.checks import Finding, judge_checks, run_measurements
from soap.evaluation.plan import SUITE_BATCH, PlannedRun, plan_run
from soap.evaluation.protocols import Threat, default_effort
from soap.evaluation.provenance import classifier_fingerprint
from soap.evaluation.run_folder import CLASSIFIER, RunFolder, open_run_on
from soap.evaluation.shards import AttackedShard, shard_in
from soap.evaluation.suite_rows import result_rows
from soap.evaluation.summary import WORST, Summary
from soap.evaluation.summary_builder import read_summary
from soap.evaluation.transfer import Watch, evaluate_transfer
from soap.evaluation.verdict import WARNED, RobustnessVerdict, judge, worst_case_line
from soap.results import Row, Store

TRANSFER_BATCH = 500
FINDINGS = "findings.json"
COMMAND_FACT = "asked"
"""The fact that holds what the caller wants to keep with the run, e.g. the command."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Report:
    """The result of an evaluation. worst_row: the row of the worst case, or of the strongest of the given attacks.

    Where a check failed, rows are raw data, and properties and exports show no accuracy under attack.
    """

    rows: Sequence[Row]
    worst_row: Row
    verdict: RobustnessVerdict

    @property
    def worst(self) -> float:
        """Accuracy in the worst case, in [0, 1]; of a random defence, the mean over fresh draws.

        NaN where a check failed (the verdict is INVALID).
        """
        return self._worst_case[0] if self.verdict.shows(WORST) else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the worst case; (NaN, NaN) where a check failed."""
        return self._worst_case[1] if self.verdict.shows(WORST) else (math.nan, math.nan)

    @property
    def n(self) -> int:
        """The number of images."""
        return self.worst_row.n

    @property
    def _worst_case(self) -> tuple[float, tuple[float, float]]:
        """Accuracy and interval of the worst case, whatever the verdict."""
        return self.worst_row.accuracy, self.worst_row.interval

    def __repr__(self) -> str:
        return f"{type(self).__name__}({worst_case_line(self.worst, self.interval, self.n, self.verdict)})"

    def _repr_html_(self) -> str:
        """The worst case with the verdict, and the results, in notebooks."""
        return exports.as_html(self)

    def to_pandas(self) -> Any:
        """The result rows as a pandas DataFrame: counts, accuracy in [0, 1] with its 95 % interval, seconds.

        Counts and accuracies under attack are missing where a check failed; `note` says which.
        """
        return exports.as_pandas(self)

    def to_latex(self) -> str:
        """A booktabs table of the results, the worst case in bold; the caption states the verdict."""
        return exports.as_latex(self)

    def to_bibtex(self) -> str:
        """A BibTeX entry with model, worst case, verdict, version, commit and date."""
        return exports.as_bibtex(self)

    def to_robustbench(self, **known: Any) -> dict[str, Any]:
        """The fields of a RobustBench model_info file; None where unknown. known: e.g. authors, link, venue."""
        return exports.as_robustbench(self, **known)

    def save(self, path: str | Path, *, format: str | None = None) -> None:
        """Write the report to a file; format: latex, bibtex, csv, json or robustbench, by default as the name ends."""
        format = exports.format_of(str(path)) if format is None else format
        atomic.write_text(Path(path), exports.report_text(self, format))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SuiteReport(Report):
    """The report of a suite run, with its folder, results and the findings of the checks.

    Like rows, summary and findings are raw data: they have all accuracies where a check failed.
    """

    folder: RunFolder
    summary: Summary
    findings: Sequence[Finding]

    @property
    def _worst_case(self) -> tuple[float, tuple[float, float]]:
        return self.summary.worst.accuracy, self.summary.worst.interval  # a row has rounded counts


def evaluate(
    defence: Defence,
    data: Dataset,
    *,
    suite: str = "full",
    attacks: Mapping[str, Attack] | None = None,
    eps: float | None = None,
    norm: str = "linf",
    steps: int | None = None,
    queries: int | None = None,
    restarts: int | None = None,
    draws: int | None = None,
    extra_attacks: Sequence[Attack] = (),
    out: str | Path | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    headline: bool = False,
    note: Mapping[str, object] | None = None,
    progress: bool = True,
    watch: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Report | AttackedShard | None:
    """Measure the accuracy of a defence under attack on all images of `data`; None after a stop.

    With `attacks`, they attack the bare classifier (the transfer protocol) and the result is an upper bound on
    robustness. Otherwise a suite attacks the defence inside the ball of radius `eps` in `norm`, checks its own result,
    and keeps everything in the folder `out`; after a stop the same call resumes and ends with the same bits.

    suite: "quick", "full", or the name of a protocol. steps: of every iterative attack; by default 100, in the quick
    suite 30. queries: of each attack without gradients; 1000, quick 100. restarts: of the adaptive attacks; 3, quick 1.
    draws: of a random defence, over which the adaptive attacks average in the end; 16, quick 8; twice as many follow,
    and four times where accuracy still falls. With less the verdict is at best CHECKS WARNED. extra_attacks: run on the
    defence, seen through its strongest gradient rule. note: kept in the folder, e.g. the command. progress: show a bar
    in terminals and notebooks, unless `watch` is given.

    Whether the defence is random and whether its gradient is exact is found by trying. The accuracy of a random defence
    is the mean over fresh draws.

    shard: (i, n) attacks only part i of n of the batches of images, counted from 0, and returns an `AttackedShard`.
    After `merge_runs` the same call without `shard`, with the merged folder as `out`, returns the report.

    headline: attack each image only until an attack of any protocol breaks it. The worst case is that of the full
    suite in less time; there are no results for single protocols, and the verdict is at best CHECKS WARNED. For
    deterministic defences.
    """
    if attacks is not None:
        if shard is not None or headline:
            what = "headline is a mode of" if headline else "shard divides the run of"
            raise InputError(f"{what} a suite; omit it with attacks=..., or omit attacks.")
        store, size = None if out is None else Store(Path(out)), TRANSFER_BATCH if batch_size is None else batch_size
        with progress_bar(progress and watch is None) as show:
            return _evaluate_attacks(
                defence, data, attacks, store=store, batch_size=size, seed=seed, watch=watch or show, stop=stop
            )
    if headline and suite != "full":
        raise InputError(f"headline is a mode of the suite 'full', got suite={suite!r}; omit headline, or suite.")
    if eps is None or out is None:
        missing = "eps, the radius of the attacks" if eps is None else "out, the folder of the run"
        raise InputError(f"suite {suite!r} needs {missing}; or give attacks={{'pgd': ...}} for the transfer protocol.")
    effort = default_effort(suite).changed(steps=steps, queries=queries, restarts=restarts, draws=draws)
    size = SUITE_BATCH if batch_size is None else batch_size
    threat = Threat(eps=eps, norm=norm)
    run = plan_run(
        defence, data, threat, suite, effort, extra_attacks, batch_size=size, seed=seed, shard=shard, headline=headline
    )
    folder = RunFolder(Path(out))
    _begin(run, folder, note)
    with kept_memory(), progress_bar(progress and watch is None) as show:
        return _run_suite(run, folder, watch or show, stop)


def _begin(run: PlannedRun, folder: RunFolder, note: Mapping[str, object] | None) -> None:
    """Write plan and note, or check that the folder holds the same run; the first process writes before others read."""
    here = distributed.processes()
    with here.main_first():
        folder.begin(run.content)
        if here.is_main and folder.read_fingerprints() is None:
            folder.note_continuation(run.content["provenance"])
        is_unknown = here.is_main and folder.read_fact(CLASSIFIER) is None
        if is_unknown and (weights := classifier_fingerprint(run.defence)) is not None:
            folder.write_fact(CLASSIFIER, {"weights_sha256": weights})
        if here.is_main and note is not None:
            folder.write_fact(COMMAND_FACT, dict(note))


def _run_suite(
    run: PlannedRun, folder: RunFolder, watch: Watch, stop: Callable[[], bool]
) -> SuiteReport | AttackedShard | None:
    """Make the attempts, then judge them by the checks, which a shard leaves to the whole run; None after a stop.

    Several processes share the attempts; the first makes the measurements of the checks and writes the results. All of
    them return the report.
    """
    here = distributed.processes()
    with devices.cudnn_deterministic(), distributed.long_waits(here) as any_process:
        summary = run_attempts(run, folder, watch=watch, stop=lambda: any_process(stop()))
        if summary is None:
            return None
        if run.shard is not None:
            if here.is_main:
                folder.write_fingerprints(summary.fingerprints)
            return shard_in(folder)
        measured = not here.is_main or run_measurements(run, folder, summary, watch=watch, stop=stop)
        if any_process(not measured):
            return None
    report = judged(folder, summary)
    if here.is_main:
        _write_results(report)
    return report


def _write_results(report: SuiteReport) -> None:
    """Write fingerprints, rows and findings of a finished run."""
    folder, store = report.folder, Store(report.folder.rows)
    folder.write_fingerprints(report.summary.fingerprints)
    known = {(row.attack, row.defence) for row in store.read()}
    for row in report.rows:
        if (row.attack, row.defence) not in known:
            store.append(row)
    content = {"verdict": asdict(report.verdict), "findings": [asdict(finding) for finding in report.findings]}
    atomic.write_text(folder.path / FINDINGS, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_report(out: str | Path, data: Dataset) -> SuiteReport:
    """The report of the run in `out` on `data`; no model is needed.

    Checks and verdict are recomputed from batches and facts, so an edited report cannot change the verdict.
    """
    folder = open_run_on(Path(out), data)
    with damaged_facts(folder):
        return judged(folder, read_summary(folder, data))


@contextmanager
def damaged_facts(folder: RunFolder) -> Iterator[None]:
    """Raise FileError for the errors that facts of a wrong type or shape cause."""
    try:
        yield
    except SoapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise FileError(
            f"{folder.path}: its facts are not valid ({type(error).__name__}: {error}); remove the folder facts and "
            "run the suite again."
        ) from error


def judged(folder: RunFolder, summary: Summary) -> SuiteReport:
    """The report of a run with these results, by its checks."""
    findings, rows = judge_checks(folder, summary), result_rows(summary)
    worst = next(row for row in rows if row.attack.name == WORST)  # that of the defence comes before the bare one
    verdict = judge(findings, summary)
    return SuiteReport(rows=rows, worst_row=worst, verdict=verdict, folder=folder, summary=summary, findings=findings)


def _evaluate_attacks(defence: Defence, data: Dataset, attacks: Mapping[str, Attack], **settings: Any) -> Report | None:
    """The report of the transfer protocol. settings: of `evaluate_transfer`."""
    if defence.classifier is None:
        raise InputError(f"{defence.name} purifies inside its forward pass; give classifier and purifier to Defence.")
    purifiers = [] if defence.purifier is None else [defence.purifier]
    rows = evaluate_transfer(defence.classifier, data, attacks, purifiers, **settings)
    own = [row for row in rows if row.defence.purifies == defence.purifies]
    if len(own) < len(attacks):
        return None
    why = "transfer: the attacker does not know the purifier" if defence.purifies else "only the given attacks ran"
    verdict = RobustnessVerdict(name=WARNED, reasons=(why,))
    return Report(rows=rows, worst_row=min(own, key=lambda row: row.accuracy), verdict=verdict)
