"""Verify a suite run: the stored images are checked and classified again by the model.

Weights and data must have the fingerprints of the run, every stored image must lie in the ball, and the counts of the
rows must come out again. Another device rounds differently and may change a few labels; they are counted, and may move
an accuracy by at most half a point.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from soap._runtime import devices
from soap.data import Dataset
from soap.defence import DEFENDED, Defence
from soap.evaluation.attempts import evaluation_seed
from soap.evaluation.checks.legal_perturbations import NORM_TOLERANCE
from soap.evaluation.labels import predicted_labels
from soap.evaluation.plan import suite_defence_spec
from soap.evaluation.provenance import classifier_fingerprint, fingerprint
from soap.evaluation.run_folder import CLASSIFIER, AttackedBatch, RunFolder, batch_fingerprint, batch_fits, open_run
from soap.evaluation.suite import damaged_facts, judged
from soap.evaluation.suite_rows import result_rows
from soap.evaluation.summary import norms
from soap.evaluation.summary_builder import SummaryBuilder
from soap.evaluation.transfer import Watch
from soap.evaluation.verdict import RobustnessVerdict
from soap.results import Row, Store, defence_from_json
from soap.specs import call_text

ACCURACY_TOLERANCE = 0.005
"""Share of the images by which an accuracy may differ through rounding on another device."""


@dataclass(frozen=True, kw_only=True)
class RowComparison:
    """A row with the counts found now, and the count that the run reported (None where it has no such row)."""

    row: Row
    reported: int | None

    @property
    def holds(self) -> bool:
        """Whether both counts agree up to rounding."""
        return self.reported is not None and abs(self.row.correct - self.reported) <= ACCURACY_TOLERANCE * self.row.n


@dataclass(frozen=True, kw_only=True)
class Verification:
    """changed: stored labels that differ now, of `labels` in all. problems: other faults, one sentence each.

    verdict: that of the run; None where its images cannot be classified, so that there are no comparisons.
    """

    verdict: RobustnessVerdict | None
    comparisons: tuple[RowComparison, ...]
    problems: tuple[str, ...]
    changed: int
    labels: int

    @property
    def holds(self) -> bool:
        """Whether the run is confirmed."""
        return not self.problems and all(one.holds for one in self.comparisons)

    @property
    def note(self) -> str:
        """Why no accuracy under attack is shown, in one sentence; empty where all are."""
        return "" if self.verdict is None else self.verdict.note

    def shows(self, comparison: RowComparison) -> bool:
        """Whether the counts of a row are shown; `holds` is shown in any case."""
        return self.verdict is None or self.verdict.shows(comparison.row.attack.name)


def verify_run(
    defence: Defence,
    data: Dataset,
    out: str | Path,
    *,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Verification | None:
    """Classify the stored images of the run in `out` again; None after a stop."""
    folder = open_run(Path(out))
    plan, names = folder.plan(), [*folder.batch_names()]
    problems = _other_subject(folder, defence, data)
    same = whole = not problems  # images or weights of another run are not classified: they prove nothing
    stored, found = SummaryBuilder(plan, data), SummaryBuilder(plan, data)
    fingerprints: dict[str, str] = {}
    not_attacked: list[str] = []
    changed = labels = 0
    for done, (name, attempt, number) in enumerate(names, 1):
        if stop():
            return None
        batch = folder.read_batch(attempt, number)
        if batch is not None:
            fingerprints[name] = batch_fingerprint(batch)
        if not same:
            continue
        problem = _invalid_batch(batch, data, plan["threat"], attacked=attempt is not None)
        if batch is None or problem:
            problems.append(f"{name}{problem}")
            whole = False
            continue
        again = _classified(defence, batch, data, plan, attempt, number)
        changed += int((again.defended != batch.defended).sum())
        labels += len(again.rows)
        # Every image that survived by the stored and by the new labels had to be attacked.
        wanted = stored.wanted(attempt, number) & found.wanted(attempt, number)
        missed = np.setdiff1d(np.flatnonzero(wanted), batch.rows)
        if attempt is not None and len(missed):
            not_attacked.append(f"{name}: {len(missed)} surviving images were not attacked; the first is {missed[0]}.")
        stored.add(attempt, number, batch)
        found.add(attempt, number, again)
        watch("classifying again", done, len(names))
    problems += not_attacked if whole else []
    if folder.read_fingerprints() is None:
        problems.append("the run has no seal.json: it is not finished; repeat its command.")
    else:
        changes = folder.changed_batches(fingerprints)
        problems += [f"{name} was changed after the run: its fingerprint differs." for name in changes]
    verdict, comparisons = None, tuple[RowComparison, ...]()
    if whole:
        with damaged_facts(folder):
            verdict = judged(folder, stored.summary()).verdict
        comparisons = _compared(folder, found)
    return Verification(
        verdict=verdict, comparisons=comparisons, problems=tuple(problems), changed=changed, labels=labels
    )


def _other_subject(folder: RunFolder, defence: Defence, data: Dataset) -> list[str]:
    """One sentence for each of weights, data and defence that is not the run's."""
    plan, own = folder.plan(), folder.read_fact(CLASSIFIER)
    pairs: dict[str, tuple[Any, Any]] = {
        "weights": (plan["weights_sha256"], fingerprint(defence.seen_by(DEFENDED) or defence)),
        "data": (plan["data"]["sha256"], data.sha256),
        "defence": (call_text(defence_from_json(plan["target"]["defence"])), call_text(suite_defence_spec(defence))),
    }
    if own is not None and len({*pairs["weights"]}) == 1:
        pairs["classifier"] = (own["weights_sha256"], classifier_fingerprint(defence))
    return [
        f"the {what} of the run: {reported}; here: {found}. Give those of the run."
        for what, (reported, found) in pairs.items()
        if reported != found
    ]


def _invalid_batch(batch: AttackedBatch | None, data: Dataset, threat: Mapping[str, Any], *, attacked: bool) -> str:
    """Why a batch cannot be classified, e.g. because a purifier rejects its images; empty where it can."""
    if batch is None:
        return " is missing: the run is not finished; repeat its command."
    if not batch_fits(batch, data, attacked=attacked):
        return f": its arrays do not fit the {len(data):,} images of {data.name}."
    if not attacked:
        return ""
    eps, norm = threat["eps"], threat["norm"]
    clean = data.x[torch.from_numpy(batch.rows)].cpu().numpy().astype(np.float64)
    inside = ((batch.x >= 0) & (batch.x <= 1)).all(axis=tuple(range(1, batch.x.ndim)))  # false for NaN, too
    bad = batch.rows[~inside | ~(norms(batch.x - clean, norm) <= eps + NORM_TOLERANCE)]
    ball = f"the ball of {norm} radius {eps:g}"
    return f": {len(bad)} images are not in {ball}; the first is image {bad[0]}." if len(bad) else ""


def _classified(
    defence: Defence, batch: AttackedBatch, data: Dataset, plan: Mapping[str, Any], attempt: int | None, number: int
) -> AttackedBatch:
    """The batch with the labels predicted now; a random defence draws from the seeds of the run."""
    if len(batch.rows) == 0:
        return batch
    x = data.x[torch.from_numpy(batch.rows)] if attempt is None else torch.from_numpy(batch.x).to(data.x.device)
    with devices.cudnn_deterministic():
        seed = evaluation_seed(int(plan["seed"]), attempt, number)
        found = predicted_labels(defence, x, draws=int(plan["draws"]), seed=seed)
    labels = {name: getattr(found, name).cpu().numpy() for name in ("defended", "bare", "drawn")}
    return replace(batch, **labels)


def _compared(folder: RunFolder, builder: SummaryBuilder) -> tuple[RowComparison, ...]:
    """The rows of the run beside those found now."""
    written = {(row.attack, row.defence): row.correct for row in Store(folder.rows).read()}
    found = result_rows(builder.summary())
    return tuple(RowComparison(row=row, reported=written.get((row.attack, row.defence))) for row in found)
