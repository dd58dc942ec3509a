"""The results of a suite run: accuracy by protocol and in the worst case, with the bare classifier on the same points.

`SummaryBuilder` collects them batch by batch, so that each batch is read once and no attacked images are kept.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from soap.data import Dataset
from soap.errors import FileError
from soap.evaluation.run_folder import AttackedBatch, RunFolder, batch_fingerprint, batch_fits, batch_name
from soap.results import Row, defence_from_json, provenance_from_json, wilson
from soap.specs import BARE, AttackSpec, AttackStep

CLEAN, WORST = "clean", "worst"
WORST_STEP = "Worst"
"""Name of the attack step of the worst case; its settings name the protocols and the threat."""

Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]
Images = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ProtocolResult:
    """The images that defence and classifier classify correctly after a protocol (or "clean", "worst"), [n] each.

    Both see the same points. bare: None where the classifier is unknown. after: share of images that survived each
    attempt, by its name.
    """

    protocol: str
    defended: Mask
    bare: Mask | None
    seconds: float
    after: Mapping[str, float] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Images."""
        return len(self.defended)

    @property
    def correct(self) -> int:
        """Images that the defence classifies correctly."""
        return int(self.defended.sum())

    @property
    def accuracy(self) -> float:
        """Share that the defence classifies correctly, in [0, 1]."""
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return wilson(self.correct, self.n)

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Accuracy of the defence less that of the classifier with a 95 % interval: (difference, low, high)."""
        return None if self.bare is None else paired_difference(self.defended, self.bare)


@dataclass(kw_only=True, eq=False)
class ProtocolState:
    """A protocol after its attempts so far, [n] each.

    survived: images still classified correctly. moved: whether the last point of an image differs from the clean
    image. bare: the classifier's label of the last point. after: share of images that survived each attempt.
    """

    survived: Mask
    moved: Mask
    bare: Labels
    after: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    batches: int = 0


@dataclass(kw_only=True)
class Reach:
    """How far attacked images went: norm of the perturbation, also as 8-bit images, and distance outside [0, 1].

    not_finite: images with NaN or infinite pixels.
    """

    norm: float = 0.0
    rounded: float = 0.0
    outside: float = 0.0
    images: int = 0
    not_finite: int = 0

    def add(self, x: Images, clean: Images, norm: str) -> None:
        """Take a batch into the maxima."""
        finite = np.asarray(np.isfinite(x).all(axis=tuple(range(1, x.ndim))))
        self.images += len(finite)
        self.not_finite += int((~finite).sum())
        x, clean = x[finite], clean[finite]
        self.norm = max(self.norm, float(norms(x - clean, norm).max(initial=0.0)))
        self.rounded = max(self.rounded, float(norms(eight_bits(x, clean) - clean, norm).max(initial=0.0)))
        self.outside = max(self.outside, float(np.maximum(-x, x - 1).max(initial=0.0)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """The results of a run. plan: its run.json. protocols: those that are complete, in order. worst: over all of them.

    reach: of all attacked images. fingerprints: of the batches, by name. broken: by attempt, attacked images and how
    many of them were misclassified. first_breaks: by image, the first (attempt, number, place) that broke it.
    clean_rows: image numbers of the clean batches, in the order in which they were read.
    """

    plan: Mapping[str, Any]
    clean: ProtocolResult
    protocols: tuple[ProtocolResult, ...]
    worst: ProtocolResult
    reach: Reach = field(default_factory=Reach)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    first_breaks: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    clean_rows: Labels = field(default_factory=lambda: np.empty(0, np.int64))

    def protocol(self, name: str) -> ProtocolResult | None:
        """The result of a protocol; None where it did not run."""
        return next((one for one in self.protocols if one.protocol == name), None)


class SummaryBuilder:
    """Collects the batches of a run, in the order of its plan, into a `Summary`."""

    def __init__(self, plan: Mapping[str, Any], data: Dataset) -> None:
        n = len(data)
        self.plan, self.x, self.y = plan, data.x.cpu().numpy(), data.y.cpu().numpy()
        self.batches = -(-n // int(plan["batch"]))
        self.defended, self.bare = np.full(n, -1), np.full(n, -1)
        self.clean_rows: list[Labels] = []
        self.states: dict[str, ProtocolState] = {}
        self.reach = Reach()
        self.fingerprints: dict[str, str] = {}
        self.broken: dict[int, tuple[int, int]] = {}
        self.first_breaks: dict[int, tuple[int, int, int]] = {}

    def add(self, attempt: int | None, number: int, batch: AttackedBatch) -> None:
        """Add a batch; attempt: None for clean images."""
        rows = batch.rows
        self.fingerprints[batch_name(attempt, number)] = batch_fingerprint(batch)
        if attempt is None:
            self.defended[rows], self.bare[rows] = batch.defended, batch.bare
            self.clean_rows.append(rows)
            return
        one, correct = self.plan["attempts"][attempt], batch.defended == self.y[rows]
        state = self.states.setdefault(
            one["protocol"],
            ProtocolState(survived=self.defended == self.y, moved=np.zeros(len(self.y), bool), bare=self.bare.copy()),
        )
        state.survived[rows] &= correct
        state.moved[rows] = (batch.x != self.x[rows]).any(axis=tuple(range(1, batch.x.ndim)))
        state.bare[rows] = batch.bare
        state.after[one["name"]] = float(state.survived.mean())
        state.seconds += batch.seconds
        state.batches += 1
        met, lost = self.broken.get(attempt, (0, 0))
        self.broken[attempt] = met + len(rows), lost + int((~correct).sum())
        for place in np.flatnonzero(~correct):
            self.first_breaks.setdefault(int(rows[place]), (attempt, number, int(place)))
        clean = self.x[rows].astype(np.float64)
        self.reach.add(batch.x.astype(np.float64), clean, self.plan["threat"]["norm"])

    def survived(self, attempt: int | None) -> Mask:
        """The images that the earlier attempts of the attempt's protocol left correctly classified; all for None."""
        if attempt is None:
            return np.ones(len(self.y), bool)
        state = self.states.get(self.plan["attempts"][attempt]["protocol"])
        return self.defended == self.y if state is None else state.survived

    def summary(self) -> Summary:
        """The results of the batches so far; a protocol counts when all its batches are there."""
        planned, y = [one["protocol"] for one in self.plan["attempts"]], self.y
        complete = {
            name: state
            for name, state in self.states.items()
            if len(self.clean_rows) == self.batches and state.batches == planned.count(name) * self.batches
        }
        survived, bare = self.defended == y, self.bare.copy()
        for state in complete.values():  # the point of an image is the first that broke it, else the last one tried
            tried = survived & state.moved
            bare[tried] = state.bare[tried]
            survived = survived & state.survived
        seconds = sum(state.seconds for state in complete.values())
        return Summary(
            plan=self.plan,
            clean=self._result(CLEAN, self.defended == y, self.bare, 0.0),
            protocols=tuple(
                self._result(name, one.survived, one.bare, one.seconds, one.after) for name, one in complete.items()
            ),
            worst=self._result(WORST, survived, bare, seconds),
            reach=self.reach,
            fingerprints=self.fingerprints,
            broken=self.broken,
            first_breaks=self.first_breaks,
            clean_rows=np.concatenate([*self.clean_rows, np.empty(0, np.int64)]),
        )

    def _result(
        self, protocol: str, survived: Mask, bare: Labels, seconds: float, after: Mapping[str, float] | None = None
    ) -> ProtocolResult:
        correct = (bare == self.y) if self.plan["separable"] else None
        return ProtocolResult(protocol=protocol, defended=survived, bare=correct, seconds=seconds, after=after or {})


def read_summary(folder: RunFolder, data: Dataset, *, unfinished: bool = False) -> Summary:
    """The results of a run from its folder; every batch is read once. FileError where one does not fit the data.

    unfinished: accept a run that was stopped before all clean images were classified.
    """
    builder = SummaryBuilder(folder.plan(), data)
    for name, attempt, number in folder.batch_names():
        batch = folder.read_batch(attempt, number)
        if batch is None and attempt is None and not unfinished:
            raise FileError(f"{folder.path}: {name} is missing, there are no results yet; repeat the run's command.")
        if batch is not None and not batch_fits(batch, data, attacked=attempt is not None):
            raise FileError(f"{folder.path}: the arrays of {name} do not fit the data; remove it, run the suite again.")
        if batch is not None:
            builder.add(attempt, number, batch)
    return builder.summary()


def result_rows(summary: Summary) -> list[Row]:
    """Result rows of clean images, every protocol and the worst case: defended, and bare on the same points."""
    plan, steps = summary.plan, dict[str, list[AttackStep]]()
    for one in plan["attempts"]:
        steps.setdefault(one["protocol"], []).append(AttackStep(**one["attack"]))
    whole = {"protocols": list(steps), **plan["threat"], "attempts": attempts_digest(steps)}
    steps |= {CLEAN: [AttackStep(name="Clean")], WORST: [AttackStep(name=WORST_STEP, settings=whole)]}
    made, defence = [], defence_from_json(plan["target"]["defence"])
    for line in (summary.clean, *summary.protocols, summary.worst):
        after = {f"after {name}": share for name, share in line.after.items()}
        row = Row(
            protocol=line.protocol if line.protocol != CLEAN else "transfer",
            model=plan["target"]["name"],
            data=plan["data"]["name"],
            attack=AttackSpec(name=line.protocol, steps=tuple(steps[line.protocol]), suite=plan["suite"]),
            defence=defence,
            n=line.n,
            correct=line.correct,
            seconds=round(line.seconds, 3),
            measures=after,
            provenance=provenance_from_json(plan["provenance"]),
        )
        made.append(row)
        if line.bare is not None and plan["purifies"]:
            aimed = replace(row.attack, against=defence)
            made.append(replace(row, attack=aimed, defence=BARE, correct=int(line.bare.sum()), measures={}))
    return made


def attempts_digest(steps: Mapping[str, Sequence[AttackStep]]) -> str:
    """A short hash of all attempts of a run, by protocol; it identifies the worst case."""
    content = {name: [asdict(step) for step in each] for name, each in steps.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


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


def paired_difference(one: Mask, other: Mask) -> tuple[float, float, float]:
    """Share of `one` less that of `other` on the same images, with a 95 % interval (Bonett & Price 2012)."""
    n, only_one, only_other = len(one), int((one & ~other).sum()), int((other & ~one).sum())
    up, down = (only_one + 1) / (n + 2), (only_other + 1) / (n + 2)
    half = 1.959964 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return (only_one - only_other) / n, max(-1.0, up - down - half), min(1.0, up - down + half)


def eight_bits(x: Images, clean: Images) -> Images:
    """Images rounded to multiples of 1/255 towards the clean image; values within 1e-4 of a multiple stay."""
    up, down = np.ceil(x * 255 - 1e-4) / 255, np.floor(x * 255 + 1e-4) / 255
    return np.where(x >= clean, down, up)


def norms(delta: Images, norm: str) -> Images:
    """The norm of each perturbation, "linf" or "l2"."""
    flat = np.abs(delta).reshape(len(delta), math.prod(delta.shape[1:]))
    return np.asarray(flat.max(1, initial=0.0) if norm == "linf" else np.sqrt((flat**2).sum(1)))
