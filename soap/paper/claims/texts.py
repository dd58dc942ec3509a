"""What the paper's text claims of its tables and figures, in our own words, from `claims.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. section: the paper's, e.g. "4.1" or "1 and 3.2"; about: names of tables and figures."""

    name: str
    text: str
    section: str
    about: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where the paper says so: "section 4.1"."""
        return f"section{'s' if ' and ' in self.section else ''} {self.section}"


def _read() -> dict[str, Claim]:
    text = (resources.files(__package__) / "claims.toml").read_text(encoding="utf-8")
    return {
        name: Claim(name=name, text=entry["text"], section=entry["section"], about=tuple(entry["about"]))
        for name, entry in tomllib.loads(text).items()
    }


CLAIMS: dict[str, Claim] = _read()
"""Every claim by its name, in the paper's order."""


def claims_about(name: str) -> tuple[Claim, ...]:
    """Those made of a table or a figure."""
    return tuple(claim for claim in CLAIMS.values() if name in claim.about)
