"""A claim taken apart: comparisons that held, did not, or lack a number; all must hold for the claim to hold.

What fails after a short training alone is told, but decides nothing: a longer one might not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Source = TypeVar("Source")

Lack = tuple[str, str]
"""What was not measured, and of which kind, e.g. ("mnist-fcn-pgd-at", "CW"); the kind may be empty."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One comparison. held: None while a number it needs is lacking; words: the numbers there are; subject: whose.

    short: the subject was trained for fewer epochs than its recipe's.
    """

    held: bool | None
    short: bool = False
    subject: str = ""
    words: str = ""
    lacks: tuple[Lack, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the parts say together."""

    parts: tuple[Part, ...]

    @property
    def held(self) -> bool | None:
        """False as soon as one part fails that was trained in full; None while parts are undecided; else True."""
        found = [None if part.held is False and part.short else part.held for part in self.parts]
        return False if False in found else None if None in found else True

    @property
    def against(self) -> str:
        """The numbers of the parts that fail and decide; empty where none does."""
        return self._words(False, short=False)

    @property
    def told(self) -> dict[str, str]:
        """All numbers by what they say, those against the claim first, and what is missing."""
        told = {
            "Against it": self.against,
            "Against it after a short training": self._words(False, short=True),
            "For it": self._words(True),
            "So far": self._words(None),
            "Missing": _missing(lack for part in self.parts for lack in part.lacks),
        }
        return {head: text for head, text in told.items() if text}

    @property
    def evidence(self) -> str:
        """The same as a text."""
        return " ".join(f"{head}: {text}." for head, text in self.told.items())

    def _words(self, held: bool | None, short: bool | None = None) -> str:
        """'FCN: PGD 61.49 against PGD AT 57.07, CW ...; CNN: ...'."""
        meant = [part for part in self.parts if part.held is held and short in (None, part.short) and part.words]
        told = _grouped((part.subject, part.words) for part in meant)
        return "; ".join(f"{subject}: {', '.join(words)}" if subject else "; ".join(words) for subject, words in told)


@dataclass(frozen=True, kw_only=True)
class Check(Generic[Source]):
    """How a claim is checked. rule: what counts as held, in words; parts: the comparisons, made from a source."""

    rule: str
    parts: Callable[[Source], Iterable[Part]]

    def judge(self, source: Source) -> Verdict:
        """The verdict by the numbers of the source."""
        return Verdict(parts=tuple(self.parts(source)))


def mostly(parts: Sequence[Part], share: float) -> Part:
    """One part that holds where at least this share of the given ones do: for what the text calls typical."""
    need, sure = share * len(parts), sum(part.held is True for part in parts)
    possible = sum(part.held is not False for part in parts)
    against = [part.words for part in parts if part.held is False]
    words = f"{sure} of {len(parts)} cases" + (f", but not {', '.join(against)}" if against else "")
    lacks = tuple(lack for part in parts for lack in part.lacks)
    held = True if sure >= need else False if possible < need else None
    return Part(held=held, words=words if sure or against else "", lacks=lacks)


def _missing(lacks: Iterable[Lack]) -> str:
    """'mnist-fcn-pgd-at (FGSM, CW), mnist-fcn-no-def (CW)'."""
    return ", ".join(f"{what} ({', '.join(kinds)})" if any(kinds) else what for what, kinds in _grouped(lacks))


def _grouped(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """The second of the pairs, each once, by the first, in their order."""
    found: dict[str, list[str]] = {}
    for first, second in pairs:
        own = found.setdefault(first, [])
        if second not in own:
            own.append(second)
    return found.items()
