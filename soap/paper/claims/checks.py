"""The paper's claims, and how one is checked: by a list of comparisons that hold, fail, or lack a number.

All must hold. A comparison that fails for a network with a shortened training is shown, but decides nothing.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from soap.paper.comparison import ComparedCell
from soap.paper.figure_data import FigureData
from soap.paper.tables import Place

TableNumbers = Mapping[str, Mapping[Place, ComparedCell]]
"""Numbers by the table's name, then by the cell's place."""

MissingNumber = tuple[str, str]
"""What was not measured, and under which attack, e.g. ("mnist-fcn-pgd-at", "CW"); the second may be empty."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. section: of the paper, e.g. "4.1" or "1 and 3.2". about: names of tables and figures.

    rule: when it holds; empty for a description. numbers: comparisons within tables, see `claims.toml`.
    """

    name: str
    text: str
    section: str
    about: tuple[str, ...]
    rule: str = ""
    numbers: Sequence[Mapping[str, object]] = ()

    @property
    def place(self) -> str:
        """Where the paper states it: "section 4.1"."""
        return f"section{'s' if ' and ' in self.section else ''} {self.section}"


def _read() -> dict[str, Claim]:
    entries = tomllib.loads((resources.files("soap.paper") / "claims.toml").read_text(encoding="utf-8"))
    return {name: Claim(name=name, **{**entry, "about": tuple(entry["about"])}) for name, entry in entries.items()}


CLAIMS: dict[str, Claim] = _read()
"""Every claim by name, in the paper's order."""


def claims_about(name: str) -> tuple[Claim, ...]:
    """The claims about a table or figure."""
    return tuple(claim for claim in CLAIMS.values() if name in claim.about)


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


TableCheck = Callable[[TableNumbers], Iterable[ClaimPart]]
FigureCheck = Callable[[ClaimEvidence], Iterable[ClaimPart]]


@dataclass(frozen=True)
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
        missing = _grouped(missing for part in self.parts for missing in part.missing)
        found = {
            "Against it": self.against,
            "Against it after a short training": self._words(False, short=True),
            "For it": self._words(True),
            "So far": self._words(None),
            "Missing": ", ".join(f"{what} ({', '.join(kinds)})" if any(kinds) else what for what, kinds in missing),
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


def mostly(parts: Sequence[ClaimPart], share: float) -> ClaimPart:
    """One part that holds if at least this share of `parts` hold: for claims that say "typically"."""
    need, sure = share * len(parts), sum(part.held is True for part in parts)
    possible = sum(part.held is not False for part in parts)
    against = [part.words for part in parts if part.held is False]
    words = f"{sure} of {len(parts)} cases" + (f", but not {', '.join(against)}" if against else "")
    missing = tuple(one for part in parts for one in part.missing)
    held = True if sure >= need else False if possible < need else None
    return ClaimPart(held=held, words=words if sure or against else "", missing=missing)


def _grouped(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """The second items of the pairs, without duplicates, by the first item; order is kept."""
    found: dict[str, dict[str, None]] = {}
    for first, second in pairs:
        found.setdefault(first, {})[second] = None
    return [(first, [*seconds]) for first, seconds in found.items()]
