"""Accuracy under each attack, bare beside purified, from rows of the `transfer` protocol; and rows as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from soap.errors import InputError
from soap.results import Row

UPPER_BOUND = (
    "The attacker did not know the purifier (protocol: transfer), so purified accuracies are upper bounds: "
    "an attacker who knows it can lower them."
)

ATTACK_TITLES = {"none": "no attack", "fgsm": "FGSM", "pgd": "PGD", "cw": "Carlini-Wagner", "df": "DeepFool"}


@dataclass(frozen=True, kw_only=True)
class AttackLine:
    """The rows of one attack: bare classifier and purified."""

    bare: Row
    purified: Row

    @property
    def title(self) -> str:
        """Display name of the attack."""
        return ATTACK_TITLES.get(self.bare.attack.name, self.bare.attack.name)

    @property
    def seconds(self) -> str:
        """Seconds of the attack and of the purifier."""
        return f"{self.bare.seconds:.1f} + {self.purified.seconds:.1f}"


def under_attack(rows: Sequence[Row]) -> list[AttackLine]:
    """One line an attack, in the order of the rows; each attack needs one bare and one purified row."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.attack.name, []).append(row)
    lines = []
    for attack, own in found.items():
        bare, purified = ([row for row in own if row.defence.purifies != wanted] for wanted in (True, False))
        if len(bare) != 1 or len(purified) != 1:
            raise InputError(
                f"attack {attack!r} has {len(bare)} bare and {len(purified)} purified rows; expected one of each. "
                "Choose the rows of one model, data set and purifier."
            )
        lines.append(AttackLine(bare=bare[0], purified=purified[0]))
    if not lines:
        raise InputError("got no rows; expected those of at least one attack. Run an evaluation first.")
    return lines


def percent(row: Row) -> str:
    """Accuracy and its 95 % interval in per cent: '80.7 [78.1, 83.0]'."""
    low, high = row.interval
    return f"{100 * row.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
