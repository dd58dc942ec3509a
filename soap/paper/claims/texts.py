"""The claims of the paper's text about its tables and figures, in our words, read from `claims.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. section: of the paper, e.g. "4.1" or "1 and 3.2". about: names of tables and figures."""

    name: str
    text: str
    section: str
    about: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where the paper states it: "section 4.1"."""
        return f"section{'s' if ' and ' in self.section else ''} {self.section}"


def _read() -> dict[str, Claim]:
    text = (resources.files("soap.paper") / "claims.toml").read_text(encoding="utf-8")
    return {
        name: Claim(name=name, text=entry["text"], section=entry["section"], about=tuple(entry["about"]))
        for name, entry in tomllib.loads(text).items()
    }


CLAIMS: dict[str, Claim] = _read()
"""Every claim by name, in the paper's order."""


def claims_about(name: str) -> tuple[Claim, ...]:
    """The claims about a table or figure."""
    return tuple(claim for claim in CLAIMS.values() if name in claim.about)
