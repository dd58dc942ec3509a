"""What would fill a cell of Table 4: a figure of the black-box protocol (section 4.2)."""

from dataclasses import dataclass
from typing import ClassVar

from soap.attacks.substitute import Substitute
from soap.paper.wanted import Wanted
from soap.results import Row

PREFIX = "substitute-"


@dataclass(frozen=True, kw_only=True)
class BlackBox(Wanted):
    """Accuracy under FGSM made on a substitute of the target.

    recipe: the target's. attack: "substitute-fcn" or "substitute-cnn", the substitute's architecture. n: the test
    images less the 150 that the attacker starts from.
    """

    protocol: ClassVar[str] = "black-box"
    n: int = 10_000 - Substitute().seeds

    @property
    def settings(self) -> str:
        """The attack as rows name it."""
        return repr(Substitute(network=self.attack.removeprefix(PREFIX)))

    def _enough(self, row: Row) -> bool:
        """All images that are not the attacker's."""
        return row.n == self.n
