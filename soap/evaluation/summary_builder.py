"""Collect the results of a suite run batch by batch.

Each batch is read once, and no attacked images are kept.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from soap.data import Dataset
from soap.defence import BARE
from soap.errors import FileError
from soap.evaluation.paired import Images, Labels, Mask
from soap.evaluation.protocols import CLASSIFIER, HALF_A_POINT
from soap.evaluation.run_folder import AttackedBatch, RunFolder, batch_fingerprint, batch_fits, batch_name
from soap.evaluation.summary import CLEAN, WORST, ProtocolResult, Reach, Summary


@dataclass(kw_only=True, eq=False)
class ProtocolState:
    """A protocol after its attempts so far, [n] each.

    survived: images still classified correctly; of a random defence, by at least one selecting draw. moved: whether
    the last point of an image differs from the clean image. bare: the classifier's label of the last point. after:
    accuracy after each attempt. Of a random defence, `bare` and the following are of the selected point. selected: its
    accuracy by the selecting draws. drawn: which reporting draws are correct, [n, k]. vote: the label of their vote.
    """

    survived: Mask
    moved: Mask
    bare: Labels
    selected: Images
    drawn: Mask
    vote: Labels
    after: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    batches: int = 0


class SummaryBuilder:
    """Collects the batches of a run, in the order of its plan, into a `Summary`."""

    def __init__(self, plan: Mapping[str, Any], data: Dataset) -> None:
        n, self.draws = len(data), int(plan["draws"])
        self.plan, self.x, self.y = plan, data.x.cpu().numpy(), data.y.cpu().numpy()
        self.batches = -(-n // int(plan["batch_size"]))
        self.cascade = plan.get("cascade") is not None
        self.clean = ProtocolState(
            survived=np.zeros(n, bool),
            moved=np.zeros(n, bool),
            bare=np.full(n, -1),
            selected=np.ones(n),
            drawn=np.zeros((n, self.draws), bool),
            vote=np.full(n, -1),
        )
        self.classifier_survived = np.zeros(n, bool)
        self.clean_rows: list[Labels] = []
        self.states: dict[str, ProtocolState] = {}
        self.reach = Reach()
        self.fingerprints: dict[str, str] = {}
        self.attacked: dict[int, Mask] = {}
        self.broken: dict[int, tuple[int, int]] = {}
        self.first_breaks: dict[int, tuple[int, int, int]] = {}
        self.falls: dict[int, Images] = {}
        """By attempt on a random defence: by how much it lowered the accuracy of each image; NaN if not attacked."""

    def add(self, attempt: int | None, number: int, batch: AttackedBatch) -> None:
        """Add a batch; attempt: None for clean images."""
        rows, bare_correct = batch.rows, batch.bare == self.y[batch.rows]
        self.fingerprints[batch_name(attempt, number)] = batch_fingerprint(batch)
        if attempt is None:
            self.clean_rows.append(rows)
            self.classifier_survived[rows] = bare_correct
            self._place(self.clean, rows, batch, np.ones(len(rows), bool))
            return
        one, correct = self.plan["attempts"][attempt], batch.defended == self.y[rows]
        state = self.states.setdefault(one["protocol"], self._start())
        if self.draws == 1:
            state.survived[rows] &= correct
            state.bare[rows] = batch.bare
        else:
            before = state.drawn[rows].mean(1)
            # The later attempt is the stronger one, so the earlier point stays only where it is clearly lower.
            shares, known = self._shares(batch), state.selected[rows]
            self._place(state, rows, batch, ~self._clearly_lower(known, shares))
            if len(rows):
                falls = self.falls.setdefault(attempt, np.full(len(self.y), np.nan))
                falls[rows] = before - state.drawn[rows].mean(1)
        self.classifier_survived[rows] &= bare_correct
        state.moved[rows] = (batch.x != self.x[rows]).any(axis=tuple(range(1, batch.x.ndim)))
        state.after[one["name"]] = float(state.survived.mean() if self.draws == 1 else state.drawn.mean())
        state.seconds += batch.seconds
        state.batches += 1
        self.attacked.setdefault(attempt, np.zeros(len(self.y), bool))[rows] = True
        met, lost = self.broken.get(attempt, (0, 0))
        self.broken[attempt] = met + len(rows), lost + int((~correct).sum())
        for place in np.flatnonzero(~correct):
            self.first_breaks.setdefault(int(rows[place]), (attempt, number, int(place)))
        clean = self.x[rows].astype(np.float64)
        self.reach.add(batch.x.astype(np.float64), clean, self.plan["threat"]["norm"])

    def wanted(self, attempt: int | None, number: int) -> Mask:
        """The images that an attempt attacks in a batch: all for None, else those that its protocol has not broken.

        In the headline mode, those that no protocol has broken. The protocol on the classifier attacks the images that
        no earlier point made the classifier misclassify, without those that withstood the same attack in another
        protocol. An attempt `unless_converged` attacks none where the attempt before it lowered accuracy by less than
        half a point.
        """
        batch = np.zeros(len(self.y), bool)
        first, size = number * int(self.plan["batch_size"]), int(self.plan["batch_size"])
        batch[first : first + size] = True
        if attempt is None:
            return batch
        one = self.plan["attempts"][attempt]
        if one.get("unless_converged") and self._clear_fall(attempt - 1, batch) < HALF_A_POINT:
            return np.zeros_like(batch)
        if one["protocol"] == CLASSIFIER:
            attempts = self.plan["attempts"]
            for other, rows in self.attacked.items():
                if other != attempt and attempts[other]["attack"] == one["attack"]:
                    batch &= ~rows
            return batch & self.classifier_survived
        if self.cascade:
            batch[list(self.first_breaks)] = False
            return batch & self.clean.survived
        return batch & self.states.get(one["protocol"], self.clean).survived

    def summary(self) -> Summary:
        """The results of the batches so far; a protocol counts when all its batches are there."""
        planned = [one["protocol"] for one in self.plan["attempts"]]
        complete = {
            name: state
            for name, state in self.states.items()
            if len(self.clean_rows) == self.batches and state.batches == planned.count(name) * self.batches
        }
        attempts = self.plan["attempts"]
        known = CLASSIFIER in complete or any(attempts[made]["attack"]["rule"] == BARE for made in self.attacked)
        known = self.plan["separable"] and (known or not self.plan["purifies"])
        worst = self._start()
        order = list(complete.values())
        if self.draws > 1:  # the strongest protocol first: the others replace its points where they are clearly lower
            order.sort(key=lambda state: float(state.selected.mean()))
            worst = replace(copy.deepcopy(order[0]), after={}) if order else worst
        for state in order:
            if self.draws == 1:  # the point of an image is the first that broke it, else the last one tried
                tried = worst.survived & state.moved
                worst.bare[tried] = state.bare[tried]
                worst.survived = worst.survived & state.survived
            else:
                lower = self._clearly_lower(state.selected, worst.selected)
                for name in ("survived", "bare", "selected", "drawn", "vote"):
                    getattr(worst, name)[lower] = getattr(state, name)[lower]
        worst.seconds = sum(state.seconds for state in complete.values())
        return Summary(
            plan=self.plan,
            clean=self._result(CLEAN, self.clean),
            protocols=() if self.cascade else tuple(self._result(name, one) for name, one in complete.items()),
            done=tuple(complete),
            worst=self._result(WORST, worst),
            reach=self.reach,
            fingerprints=self.fingerprints,
            broken=self.broken,
            falls=self.falls,
            first_breaks=self.first_breaks,
            clean_rows=np.concatenate([*self.clean_rows, np.empty(0, np.int64)]),
            clean_labels=self.clean.vote,
            classifier_worst=self.classifier_survived.copy() if known else None,
        )

    def _start(self) -> ProtocolState:
        """The state before the first attempt of a protocol: that of the clean images."""
        return copy.deepcopy(self.clean)

    def _clear_fall(self, attempt: int, batch: Mask) -> float:
        """By how much an attempt lowered the mean accuracy of a batch; 0 within two standard errors of zero."""
        falls = self.falls.get(attempt, np.full(len(batch), np.nan))[batch]
        falls = falls[~np.isnan(falls)]
        if len(falls) < 2:
            return 0.0
        mean = float(falls.mean())
        return mean if mean > 2 * float(falls.std(ddof=1)) / math.sqrt(len(falls)) else 0.0

    def _shares(self, batch: AttackedBatch) -> Images:
        """The accuracy of every image by the selecting draws of a random defence; 0 or 1 of a deterministic one."""
        right = batch.defended == self.y[batch.rows]
        if self.draws == 1 or len(right) == 0:
            return np.asarray(right, np.float64)
        return np.asarray((batch.drawn[:, : self.draws] == self.y[batch.rows, None]).mean(1))

    def _clearly_lower(self, one: Images, other: Images) -> Mask:
        """Which accuracies by k selecting draws are lower than the other by more than a standard error.

        The minimum of many noisy accuracies is a lucky one: by fresh draws it is higher than that of a stronger point.
        """
        mean = (one + other) / 2
        return np.asarray(other - one > np.sqrt(2 * mean * (1 - mean) / self.draws))

    def _place(self, state: ProtocolState, rows: Labels, batch: AttackedBatch, chosen: Mask) -> None:
        """Take the points of a batch that are `chosen` into a state."""
        at, y = rows[chosen], self.y[rows[chosen]]
        state.selected[at] = self._shares(batch)[chosen]
        state.survived[at] = state.selected[at] > 0
        state.vote[at], state.bare[at] = batch.defended[chosen], batch.bare[chosen]
        if self.draws > 1 and len(at):
            state.drawn[at] = batch.drawn[chosen][:, self.draws :] == y[:, None]

    def _result(self, protocol: str, state: ProtocolState) -> ProtocolResult:
        bare = (state.bare == self.y) if self.plan["separable"] else None
        made = ProtocolResult(
            protocol=protocol, defended=state.survived.copy(), bare=bare, seconds=state.seconds, after=state.after
        )
        if self.draws == 1:
            return made
        return replace(made, defended=state.vote == self.y, drawn=state.drawn.copy(), selected=state.selected.copy())


def read_summary(folder: RunFolder, data: Dataset, *, unfinished: bool = False) -> Summary:
    """The results of a run from its folder; every batch is read once. FileError where one does not fit the data.

    unfinished: accept a run that was stopped before all clean images were classified.
    """
    builder = SummaryBuilder(folder.plan(), data)
    for name, attempt, number in folder.batch_names():
        batch = read_fitting_batch(folder, data, attempt, number)
        if batch is None and attempt is None and not unfinished:
            raise FileError(f"{folder.path}: {name} is missing, there are no results yet; repeat the run's command.")
        if batch is not None:
            builder.add(attempt, number, batch)
    return builder.summary()


def read_fitting_batch(folder: RunFolder, data: Dataset, attempt: int | None, number: int) -> AttackedBatch | None:
    """A batch of the folder, whose arrays must fit the data; None where it is missing."""
    batch = folder.read_batch(attempt, number)
    if batch is not None and not batch_fits(batch, data, attacked=attempt is not None):
        name = batch_name(attempt, number)
        raise FileError(f"{folder.path}: the arrays of {name} do not fit the data; remove it, run the suite again.")
    return batch


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenImage:
    """An image that is correctly classified when clean, and the first attempt that broke it.

    row: its number in the data; y: its class. defended, bare: predictions of defence and classifier for `attacked`;
    bare is -1 where the classifier is unknown.
    """

    row: int
    y: int
    clean: npt.NDArray[np.float32]
    attacked: npt.NDArray[np.float32]
    defended: int
    bare: int
    attempt: str


def broken_images(folder: RunFolder, summary: Summary, data: Dataset, count: int) -> list[BrokenImage]:
    """The first `count` broken images in the order of the data, so that they cannot be hand-picked."""
    found = []
    for row in sorted(summary.first_breaks)[:count]:
        attempt, number, place = summary.first_breaks[row]
        batch, one = folder.read_batch(attempt, number), summary.plan["attempts"][attempt]
        if batch is not None:
            found.append(
                BrokenImage(
                    row=row,
                    y=int(data.y[row]),
                    clean=data.x[row].cpu().numpy(),
                    attacked=batch.x[place],
                    defended=int(batch.defended[place]),
                    bare=int(batch.bare[place]),
                    attempt=f"{one['protocol']}, {one['name']}",
                )
            )
    return found
