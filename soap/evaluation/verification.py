"""Does a run's report hold? Its stored images are looked at again, and scored again by the model.

Nothing the run says of itself is believed: weights and data must have the fingerprints it names, every stored image
must lie in the ball, and the counts of its rows must come out again. Another device rounds otherwise and may answer
a few images differently: they are counted, and move a figure by less than half a point.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from soap._runtime import devices
from soap._runtime.isolation import isolated
from soap.data import Dataset
from soap.evaluation.adaptive.folder import Attacked, RunFolder
from soap.evaluation.adaptive.opened import fits, opened
from soap.evaluation.adaptive.seal import batches, fingerprints, seal_of
from soap.evaluation.adaptive.summary import rows, summarise
from soap.evaluation.adaptive.target import Target
from soap.evaluation.provenance import fingerprint
from soap.evaluation.transfer import Watch
from soap.results import Row, Store

ROUNDING = 0.005
"""Share of the images by which a figure may differ: what rounding on another device may do, and no more."""

SLACK = 1e-6
"""By how much a norm may pass the radius in float32, as in check 1."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One figure of the report: images right by its row, and by scoring the stored images again.

    reported: None where the run has no such row.
    """

    row: Row
    reported: int | None

    @property
    def name(self) -> str:
        """The protocol, "clean" or "worst"."""
        return self.row.attack.rpartition(": ")[2]

    @property
    def found(self) -> int:
        """Images right when scored again."""
        return self.row.correct

    @property
    def holds(self) -> bool:
        """Whether both agree up to rounding."""
        return self.reported is not None and abs(self.found - self.reported) <= ROUNDING * self.row.n


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found. changed: stored answers that came out otherwise, of so many `answers`.

    problems: what is wrong besides the figures, one sentence each.
    """

    figures: tuple[Compared, ...]
    problems: tuple[str, ...]
    changed: int
    answers: int

    @property
    def holds(self) -> bool:
        """Whether the report may be believed."""
        return not self.problems and all(figure.holds for figure in self.figures)


class Rescored(RunFolder):
    """A run with the answers given now in place of the stored ones."""

    def __init__(self, path: Path, now: dict[tuple[int | None, int], Attacked]) -> None:
        super().__init__(path)
        self.now = now

    def batch(self, attempt: int | None, number: int) -> Attacked | None:
        """A batch as it was scored now."""
        return self.now.get((attempt, number))


def verify(
    target: Target,
    data: Dataset,
    out: Path,
    *,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> Verification | None:
    """Score the stored images of the run in `out` again; None when asked to stop."""
    folder = opened(out)
    problems = _identity(folder, target, data)
    ours = not problems  # scoring other images, or by another network, would prove nothing
    planned, threat = [*batches(folder)], folder.plan()["threat"]
    now: dict[tuple[int | None, int], Attacked] = {}
    changed = answers = 0
    for done, (name, attempt, number) in enumerate(planned if ours else []):
        if stop():
            return None
        batch = folder.batch(attempt, number)
        if batch is None:
            problems.append(f"{name} is missing: the run is not finished; repeat the command that began it.")
            continue
        if not fits(batch, data, attacked=attempt is not None):
            problems.append(f"{name}: its arrays do not fit the {len(data):,} images of {data.name}.")
            continue
        if attempt is not None and (illegal := _illegal(name, batch, data, threat)):
            problems += illegal  # not for the model: a purifier refuses what is no image
            continue
        again = _scored(target, batch, data, clean=attempt is None)
        changed += int((again.defended != batch.defended).sum())
        answers += len(again.rows)
        now[attempt, number] = again
        watch("scoring again", done + 1, len(planned))
    rescored, whole = Rescored(out, now), len(now) == len(planned)
    problems += _spared(folder, rescored, data) if whole else []
    problems += _broken_seal(folder)
    figures = _compared(folder, rescored, data) if whole else ()
    return Verification(figures=figures, problems=tuple(problems), changed=changed, answers=answers)


def _identity(folder: RunFolder, target: Target, data: Dataset) -> list[str]:
    """Whether model and data are those of the run."""
    plan = folder.plan()
    pairs = {
        "weights": (plan["weights_sha256"], fingerprint(target.defended)),
        "data": (plan["data"]["sha256"], data.sha256),
        "defence": (plan["target"]["defence"], target.label),
    }
    return [
        f"the {what} of the run: {reported}; here: {found}. Nothing can be scored by another; name the run's own."
        for what, (reported, found) in pairs.items()
        if reported != found
    ]


def _illegal(name: str, batch: Attacked, data: Dataset, threat: Mapping[str, Any]) -> list[str]:
    """Whether every image lies in the ball, in [0, 1], and is finite."""
    if len(batch.rows) == 0:
        return []
    eps, norm = threat["eps"], threat["norm"]
    clean = data.x[torch.from_numpy(batch.rows)].cpu().numpy().astype(np.float64)
    delta = (batch.x - clean).reshape(len(batch.rows), -1)
    sizes = np.abs(delta).max(1) if norm == "linf" else np.sqrt(np.square(delta).sum(1))
    flat = batch.x.reshape(len(batch.rows), -1)
    outside = ~((flat >= 0) & (flat <= 1)).all(1)  # NaN is not in [0, 1], either
    bad = batch.rows[outside | ~(sizes <= eps + SLACK)]
    ball = f"the ball of {norm} radius {eps:g}"
    return [f"{name}: {len(bad)} images are not in {ball}; the first is image {bad[0]}."] if len(bad) else []


def _scored(target: Target, batch: Attacked, data: Dataset, *, clean: bool) -> Attacked:
    """The batch with the answers given now."""
    if len(batch.rows) == 0:
        return batch
    x = data.x[torch.from_numpy(batch.rows)] if clean else torch.from_numpy(batch.x).to(data.x.device)
    with isolated(target.defended), devices.cudnn_deterministic():
        defended, bare = target.answers(x)
    return replace(batch, defended=defended.cpu().numpy(), bare=bare.cpu().numpy())


def _spared(folder: RunFolder, rescored: Rescored, data: Dataset) -> list[str]:
    """Whether every attempt met all images that the ones before it in its protocol left standing, by either answers."""
    plan, y, problems = folder.plan(), data.y.cpu().numpy(), []
    standing = np.zeros(len(data), bool)
    alive, protocol = standing, None
    for name, attempt, number in batches(folder):
        then, now = folder.batch(attempt, number), rescored.batch(attempt, number)
        if then is None or now is None:
            continue
        right = (then.defended == y[then.rows]) & (now.defended == y[then.rows])
        if attempt is None:
            standing[then.rows] = right
            continue
        if plan["attempts"][attempt]["protocol"] != protocol:
            alive, protocol = standing.copy(), plan["attempts"][attempt]["protocol"]
        first = number * int(plan["batch"])
        wanted = first + np.flatnonzero(alive[first : first + int(plan["batch"])])
        if missed := np.setdiff1d(wanted, then.rows).tolist():
            problems.append(f"{name}: {len(missed)} images that stood were not attacked; the first is {missed[0]}.")
        alive[then.rows] &= right
    return problems


def _broken_seal(folder: RunFolder) -> list[str]:
    """Whether the files are those that the run wrote."""
    written = seal_of(folder)
    if written is None:
        return ["the run has no seal: it is not finished; repeat the command that began it."]
    found = fingerprints(folder)
    return [
        f"{name} was changed after the run: its fingerprint is another."
        for name in sorted({*written, *found})
        if written.get(name) != found.get(name)
    ]


def _compared(folder: RunFolder, rescored: Rescored, data: Dataset) -> tuple[Compared, ...]:
    """The rows of the run beside those that its images give now."""
    written = {(row.attack, row.defence): row.correct for row in Store(folder.rows).read()}
    found = rows(summarise(rescored, data))
    return tuple(Compared(row=row, reported=written.get((row.attack, row.defence))) for row in found)
