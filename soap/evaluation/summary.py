"""What a run came to: accuracy by protocol and in the worst case, the bare classifier beside it; figures and rows."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from soap.data import Dataset
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.suite import Outcome, clean_labels, outcomes
from soap.results import Provenance, Row, wilson

CLEAN, WORST = "clean", "worst"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """One protocol, "clean" or "worst": which images the defence and the classifier alone get right, [n] each.

    Both are asked about the same points. bare: None where the classifier cannot be told apart from its defence.
    """

    protocol: str
    defended: Mask
    bare: Mask | None
    seconds: float

    @property
    def n(self) -> int:
        """Images."""
        return len(self.defended)

    @property
    def correct(self) -> int:
        """Images that the defence gets right."""
        return int(self.defended.sum())

    @property
    def accuracy(self) -> float:
        """Share that the defence gets right, in [0, 1]."""
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % Wilson interval."""
        return wilson(self.correct, self.n)

    @property
    def bare_accuracy(self) -> float | None:
        """The classifier's own, on the same points."""
        return None if self.bare is None else float(self.bare.mean())

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Defence less classifier with its 95 % interval (difference, low, high); None where there is no classifier."""
        return None if self.bare is None else paired_difference(self.defended, self.bare)


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """A run's figures. plan: its run.json. protocols: in the order they were run. worst: over all of them."""

    plan: Mapping[str, Any]
    clean: Line
    protocols: tuple[Line, ...]
    worst: Line
    outcomes: Mapping[str, Outcome]

    def line(self, protocol: str) -> Line | None:
        """A protocol's; None where it was not run."""
        return next((line for line in self.protocols if line.protocol == protocol), None)


def summarise(folder: RunFolder, data: Dataset) -> Summary:
    """The figures of what is done, from the folder alone."""
    y, plan = data.y.cpu().numpy(), folder.plan()
    apart = bool(plan["separable"])
    found = outcomes(folder, data)
    defended, bare = clean_labels(folder, len(data))
    clean = Line(protocol=CLEAN, defended=defended == y, bare=(bare == y) if apart else None, seconds=0.0)
    lines = tuple(
        Line(
            protocol=name,
            defended=outcome.standing,
            bare=(outcome.bare == y) if apart else None,
            seconds=outcome.seconds,
        )
        for name, outcome in found.items()
    )
    standing, said = clean.defended.copy(), bare.copy()
    for outcome in found.values():  # an image's point is the first that broke it, else the last that was tried
        open_ = standing & ~_same(outcome.x, data)
        said[open_] = outcome.bare[open_]
        standing &= outcome.standing
    seconds = sum(line.seconds for line in lines)
    last = Line(protocol=WORST, defended=standing, bare=(said == y) if apart else None, seconds=seconds)
    return Summary(plan=plan, clean=clean, protocols=lines, worst=last, outcomes=found)


def rows(summary: Summary) -> list[Row]:
    """Result rows: clean, every protocol and the worst case; behind the defence, and bare on the same points."""
    plan = summary.plan
    settings: dict[str, list[str]] = {}
    for one in plan["attempts"]:
        settings.setdefault(one["protocol"], []).append(one["settings"])
    said = {name: "; ".join(parts) for name, parts in settings.items()}
    threat, digest = plan["threat"], hashlib.sha256(repr(sorted(said.items())).encode()).hexdigest()[:12]
    worst = f"the worst of {', '.join(settings)}; eps={threat['eps']:g}, {threat['norm']}, attempts {digest}"
    said |= {CLEAN: "Clean()", WORST: worst}
    made, behind = [], plan["target"]["defence"]
    for line in (summary.clean, *summary.protocols, summary.worst):
        outcome = summary.outcomes.get(line.protocol)
        after = {f"after {name}": share for name, share in outcome.after.items()} if outcome else {}
        masks = {behind: line.defended}
        if line.bare is not None and plan["purifies"]:
            masks["none"] = line.bare
        for defence, right in masks.items():
            made.append(
                Row(
                    protocol=line.protocol if line.protocol != CLEAN else "transfer",
                    model=plan["target"]["name"],
                    data=plan["data"]["name"],
                    attack=f"suite {plan['suite']}: {line.protocol}",
                    settings=said[line.protocol] + (f"; against {behind}" if defence != behind else ""),
                    eps_pfy="none" if defence == "none" else plan["target"]["eps_pfy"],
                    defence=defence,
                    n=line.n,
                    correct=int(right.sum()),
                    seconds=round(line.seconds, 3),
                    measures={} if defence == "none" and plan["purifies"] else after,
                    provenance=Provenance(**plan["provenance"]),
                )
            )
    return made


def paired_difference(one: Mask, other: Mask) -> tuple[float, float, float]:
    """Share of `one` less that of `other` on the same images, with a 95 % interval (Bonett & Price 2012)."""
    n, only_one, only_other = len(one), int((one & ~other).sum()), int((other & ~one).sum())
    up, down = (only_one + 1) / (n + 2), (only_other + 1) / (n + 2)
    half = 1.959964 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return (only_one - only_other) / n, max(-1.0, up - down - half), min(1.0, up - down + half)


def _same(x: npt.NDArray[np.float32], data: Dataset) -> Mask:
    """Which images of `x` are still the clean ones: no attempt met them."""
    flat = (x == data.x.cpu().numpy()).reshape(len(x), -1)
    same: Mask = flat.all(1)
    return same
