"""How a claim is checked: as a list of comparisons that hold, fail, or lack a number. All must hold.

A comparison that fails for a network with a shortened training is shown, but decides nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from soap.paper.comparison import ComparedCell
from soap.paper.figure_data import FigureData
from soap.paper.figure_inputs import FigureInput
from soap.paper.tables import Place
from soap.results import Row

EvidenceSource = TypeVar("EvidenceSource")

TableNumbers = Mapping[str, Mapping[Place, ComparedCell]]
"""Numbers by the table's name, then by the cell's place."""

MissingNumber = tuple[str, str]
"""What was not measured, and under which attack, e.g. ("mnist-fcn-pgd-at", "CW"); the second may be empty."""


@dataclass(frozen=True, kw_only=True)
class ClaimEvidence:
    """All measurements that claims are judged by.

    tables: our numbers in the paper's tables. seconds: duration of an epoch by recipe; those of one network come from
    one machine. figure_data: rows of sweeps, and a folder of curves and images.
    """

    tables: TableNumbers = field(repr=False)
    seconds: Mapping[str, float] = field(repr=False)
    figure_data: FigureData = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ClaimPart:
    """One comparison. held: None if a number is missing. words: the numbers. subject: the network or method.

    short: the subject was trained for fewer epochs than its recipe's.
    """

    held: bool | None
    short: bool = False
    subject: str = ""
    words: str = ""
    missing: tuple[MissingNumber, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    """The result of all parts of a claim."""

    parts: tuple[ClaimPart, ...]

    @property
    def held(self) -> bool | None:
        """False if a part with a full training fails; else None if a part is undecided; else True."""
        found = [None if part.held is False and part.short else part.held for part in self.parts]
        return False if False in found else None if None in found else True

    @property
    def against(self) -> str:
        """Numbers of the parts that fail and decide; empty if there is none."""
        return self._words(False, short=False)

    @property
    def evidence_by_kind(self) -> dict[str, str]:
        """All numbers by what they show, those against the claim first, and what is missing."""
        found = {
            "Against it": self.against,
            "Against it after a short training": self._words(False, short=True),
            "For it": self._words(True),
            "So far": self._words(None),
            "Missing": _missing_text(missing for part in self.parts for missing in part.missing),
        }
        return {head: text for head, text in found.items() if text}

    @property
    def evidence(self) -> str:
        """The same as one text."""
        return " ".join(f"{head}: {text}." for head, text in self.evidence_by_kind.items())

    def _words(self, held: bool | None, short: bool | None = None) -> str:
        """'FCN: PGD 61.49 against PGD AT 57.07, CW ...; CNN: ...'."""
        chosen = [part for part in self.parts if part.held is held and short in (None, part.short) and part.words]
        found = _grouped((part.subject, part.words) for part in chosen)
        return "; ".join(f"{subject}: {', '.join(words)}" if subject else "; ".join(words) for subject, words in found)


@dataclass(frozen=True, kw_only=True)
class ClaimCheck(Generic[EvidenceSource]):
    """How one claim is checked. rule: when it holds, in words. parts: its comparisons."""

    rule: str
    parts: Callable[[EvidenceSource], Iterable[ClaimPart]]

    def judge(self, source: EvidenceSource) -> ClaimVerdict:
        """The verdict by the numbers of the source."""
        return ClaimVerdict(parts=tuple(self.parts(source)))


def mostly(parts: Sequence[ClaimPart], share: float) -> ClaimPart:
    """One part that holds if at least this share of `parts` hold: for claims that say "typically"."""
    need, sure = share * len(parts), sum(part.held is True for part in parts)
    possible = sum(part.held is not False for part in parts)
    against = [part.words for part in parts if part.held is False]
    words = f"{sure} of {len(parts)} cases" + (f", but not {', '.join(against)}" if against else "")
    missing = tuple(one for part in parts for one in part.missing)
    held = True if sure >= need else False if possible < need else None
    return ClaimPart(held=held, words=words if sure or against else "", missing=missing)


def undecided(missing: FigureInput) -> ClaimPart:
    """A part that is undecided because this input was not made."""
    return ClaimPart(held=None, missing=((missing.need, ""),))


def radius_text(value: float, attack: float) -> str:
    """A radius in the unit of the attack's radius: '0.3' or '8/255'."""
    return f"{value:.3g}" if attack > 0.1 else f"{255 * value:.3g}/255"


def percent(row: Row) -> float:
    """Accuracy in per cent."""
    return 100 * row.accuracy


def images_text(row: Row) -> str:
    """' (1,000 images)'."""
    return f" ({row.n:,} images)"


def _missing_text(missing: Iterable[MissingNumber]) -> str:
    """'mnist-fcn-pgd-at (FGSM, CW), mnist-fcn-no-def (CW)'."""
    return ", ".join(f"{what} ({', '.join(kinds)})" if any(kinds) else what for what, kinds in _grouped(missing))


def _grouped(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """The second items of the pairs, without duplicates, by the first item; order is kept."""
    found: dict[str, list[str]] = {}
    for first, second in pairs:
        own = found.setdefault(first, [])
        if second not in own:
            own.append(second)
    return found.items()
