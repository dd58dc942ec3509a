"""Results of a suite run: accuracy by protocol and in the worst case, with the bare classifier on the same points."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soap.evaluation.paired import Images, Labels, Mask, paired_gain
from soap.results import wilson

CLEAN, WORST = "clean", "worst"


@dataclass(frozen=True, kw_only=True, eq=False)
class ProtocolResult:
    """The images that defence and classifier classify correctly after a protocol (or "clean", "worst"), [n] each.

    Both see the same points. bare: None where the classifier is unknown. after: accuracy after each attempt, by its
    name. drawn: of a random defence, which reporting draws are correct, [n, k]; `defended` is then their majority vote.
    selected: its accuracy by the selecting draws.
    """

    protocol: str
    defended: Mask
    bare: Mask | None
    seconds: float
    after: Mapping[str, float] = field(default_factory=dict)
    drawn: Mask | None = None
    selected: Images | None = None

    @property
    def n(self) -> int:
        """Images."""
        return len(self.defended)

    @property
    def values(self) -> Images:
        """Of every image, whether it is classified correctly (0 or 1); of a random defence, the mean over draws."""
        return self.defended.astype(np.float64) if self.drawn is None else self.drawn.mean(1)

    @property
    def correct(self) -> int:
        """Images that the defence classifies correctly; of a random one, the mean over draws, rounded."""
        return round(float(self.values.sum()))

    @property
    def accuracy(self) -> float:
        """Share that the defence classifies correctly, in [0, 1]; of a random one, the mean over fresh draws."""
        return float(self.values.sum()) / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy, for n images.

        Values between 0 and 1 vary less than zeros and ones of the same mean, so it is no narrower than needed.
        """
        return wilson(float(self.values.sum()), self.n)

    @property
    def worst_of_draws(self) -> float | None:
        """Share of images that every reporting draw classifies correctly: an attacker who may try k times."""
        return None if self.drawn is None else float(self.drawn.all(1).mean())

    @property
    def majority(self) -> float | None:
        """Share of images that the majority vote of the reporting draws classifies correctly."""
        return None if self.drawn is None else float(self.defended.mean())


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

    done: names of the complete protocols. In the headline mode `protocols` is empty: none has a result of its own.
    reach: of all attacked images. fingerprints: of the batches, by name. broken: by attempt, attacked images and how
    many of them were misclassified. first_breaks: by image, the first (attempt, number, place) that broke it.
    falls: by attempt on a random defence, how much it lowered the accuracy of each image; NaN if not attacked.
    clean_rows: image numbers of the clean batches, in the order in which they were read. clean_labels: of the defence.
    classifier_worst: images that the classifier alone classifies correctly at every point tried; None where unknown.
    """

    plan: Mapping[str, Any]
    clean: ProtocolResult
    protocols: tuple[ProtocolResult, ...]
    worst: ProtocolResult
    done: tuple[str, ...] = ()
    reach: Reach = field(default_factory=Reach)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    first_breaks: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    falls: Mapping[int, Images] = field(default_factory=dict)
    clean_rows: Labels = field(default_factory=lambda: np.empty(0, np.int64))
    clean_labels: Labels = field(default_factory=lambda: np.empty(0, np.int64))
    classifier_worst: Mask | None = None

    def protocol(self, name: str) -> ProtocolResult | None:
        """The result of a protocol; None where it did not run."""
        return next((one for one in self.protocols if one.protocol == name), None)

    @property
    def headline(self) -> bool:
        """Whether the attempts were one cascade, see `soap.evaluation.cascade`."""
        return self.plan.get("cascade") is not None

    def first_broken_by(self, protocols: Collection[str]) -> list[int]:
        """The images that these protocols were the first to break."""
        attempts = self.plan["attempts"]
        return [row for row, (each, *_) in self.first_breaks.items() if attempts[each]["protocol"] in protocols]


def classifier_gain(summary: Summary) -> tuple[float, float, float] | None:
    """Worst case of the defence less that of the classifier, each under its own strongest attack: (difference, low,
    high) with a 95 % interval for the same images; None where the classifier is unknown."""
    own = summary.classifier_worst
    return None if own is None else paired_gain(summary.worst.values, own)


def eight_bits(x: Images, clean: Images) -> Images:
    """Images rounded to multiples of 1/255 towards the clean image; values within 1e-4 of a multiple stay."""
    up, down = np.ceil(x * 255 - 1e-4) / 255, np.floor(x * 255 + 1e-4) / 255
    return np.where(x >= clean, down, up)


def norms(delta: Images, norm: str) -> Images:
    """The norm of each perturbation, "linf", "l2" or "l1"."""
    flat = np.abs(delta).reshape(len(delta), math.prod(delta.shape[1:]))
    if norm == "l1":
        return np.asarray(flat.sum(1))
    return np.asarray(flat.max(1, initial=0.0) if norm == "linf" else np.sqrt((flat**2).sum(1)))
