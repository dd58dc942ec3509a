"""The whole evaluation in one call: attack, probe, check, judge; and the report of it read back from its folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from soap import validate
from soap._files import atomic
from soap._runtime import devices
from soap.data import Dataset
from soap.errors import FileError, SoapError
from soap.evaluation.adaptive.attempts import Threat, attempts
from soap.evaluation.adaptive.checks import Finding, findings
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.opened import fitting
from soap.evaluation.adaptive.probes import run_probes
from soap.evaluation.adaptive.seal import seal, seal_of
from soap.evaluation.adaptive.suite import plan, run_attempts
from soap.evaluation.adaptive.summary import Summary, rows, summarise
from soap.evaluation.adaptive.target import Target
from soap.evaluation.adaptive.verdict import Verdict, verdict
from soap.evaluation.transfer import Watch
from soap.results import Store

STEPS, QUICK_STEPS = 100, 30
"""Steps of every iterative attack where the caller names none; the quick suite is to take two minutes, not ten."""

QUERIES = 1000
"""Of Square and the substitute where none are named; AutoAttack's own Square asks 5,000 times about what is left."""

FINDINGS = "findings.json"
ASKED = "asked"


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What a run came to: its figures, what the checks found, and whether the headline may be believed."""

    folder: RunFolder
    summary: Summary
    findings: Sequence[Finding]
    verdict: Verdict


def evaluate(
    target: Target,
    data: Dataset,
    threat: Threat,
    *,
    suite: str = "full",
    out: Path,
    steps: int | None = None,
    queries: int = QUERIES,
    batch: int = 250,
    seed: int = 0,
    asked: Mapping[str, object] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Report | None:
    """Attack the target on all images of `data` by a suite or one protocol, and doubt the number that comes out.

    Everything is kept in the folder `out`; None when asked to stop, and the same call then goes on and ends with the
    same bits. suite: "quick", "full", or a protocol. steps: of every iterative attack; None for `usual_steps`.
    queries: of Square and of the substitute. asked: what the caller wants kept beside the run, e.g. the command; a
    report shows it.
    """
    folder = RunFolder(out)
    steps, images = usual_steps(suite) if steps is None else steps, data.x.ndim == 4
    validate.inputs(data.x, target.bare)
    classes = target.classes(data.x)
    planned = attempts(target, threat, suite, steps=steps, queries=queries, images=images, classes=classes)
    made = plan(target, data, threat, planned, suite=suite, batch=batch, seed=seed)
    folder.begin(made)
    if seal_of(folder) is None:
        folder.go_on(made["provenance"])
    if asked is not None:
        folder.note(ASKED, dict(asked))
    with devices.cudnn_deterministic():
        done = run_attempts(
            target, data, threat, planned, suite=suite, out=out, batch=batch, seed=seed, watch=watch, stop=stop
        )
        if done is None:
            return None
        if not run_probes(target, data, threat, planned, folder, suite=suite, seed=seed, watch=watch, stop=stop):
            return None
    seal(folder)
    report = _judged(folder, data)
    store = Store(folder.rows)
    known = {(row.attack, row.defence) for row in store.read()}
    for row in rows(report.summary):
        if (row.attack, row.defence) not in known:
            store.append(row)
    content = {"verdict": asdict(report.verdict), "findings": [asdict(finding) for finding in report.findings]}
    atomic.write_text(out / FINDINGS, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return report


def usual_steps(suite: str) -> int:
    """Steps of every iterative attack where none are named."""
    return QUICK_STEPS if suite == "quick" else STEPS


def read(out: Path, data: Dataset) -> Report:
    """The report of the run in `out` on `data`, by what is in the folder; no model is needed.

    Checks and verdict are made again from the batches and facts, so that nobody can write himself a better one.
    """
    folder = fitting(out, data)
    try:
        return _judged(folder, data)
    except SoapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise FileError(
            f"{out}: its facts are not what probes write ({type(error).__name__}: {error}); remove the folder facts "
            "and run the suite again."
        ) from error


def _judged(folder: RunFolder, data: Dataset) -> Report:
    summary = summarise(folder, data)
    found = findings(folder, data)
    return Report(folder=folder, summary=summary, findings=found, verdict=verdict(found, summary))
