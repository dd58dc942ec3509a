"""What would fill a cell of the paper: one figure, said in terms of recipes, attacks and purifiers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from soap import recipes
from soap.evaluation.threats import PAPER
from soap.recipes import generative
from soap.results import Row, wilson
from soap.specs import UNDEFENDED, AttackSpec, DefenceSpec, attack_spec

FEWEST = 1_000
"""A row on so many images, the first of the test set, stands in where none has all."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One figure of the transfer protocol, on the whole test set, with the paper's own settings.

    recipe: the model's. attack: a name of `PAPER`. eps_pfy: "none" (the bare classifier, which is what eps = 0 is),
    "min-aux" or "oracle". gradient: for label consistency, the gradient to purify by instead of the recipe's.
    prior: recipe of a generative model; the purifier that uses it stands before the classifier, instead of SOAP's own.
    measure: "accuracy", or a key of the row's measures such as "success". n: images of the whole test set.
    """

    protocol: ClassVar[str] = "transfer"
    recipe: str
    attack: str
    eps_pfy: str = UNDEFENDED
    gradient: str | None = None
    prior: str | None = None
    measure: str = "accuracy"
    n: int = 10_000

    @property
    def settings(self) -> AttackSpec:
        """The attack as rows store it."""
        return attack_spec(self.attack, PAPER[recipes.read(self.recipe).data][self.attack])

    @property
    def defence(self) -> DefenceSpec:
        """The purifier as rows store it."""
        if self.prior is not None:
            return generative.purifier_spec(generative.read(self.prior))
        return recipes.purifier_spec(recipes.read(self.recipe), self.eps_pfy, self.gradient)

    @property
    def needs(self) -> tuple[str, ...]:
        """The recipes whose weights it takes."""
        return (self.recipe,) if self.prior is None else (self.recipe, self.prior)

    @property
    def epochs(self) -> int:
        """How long the recipe trains; a row may tell of a shorter training."""
        return recipes.read(self.recipe).training.epochs

    def found_in(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that measured it, one or more for each training of the recipe: all with the most images."""
        named = (self.protocol, self.recipe, self.attack)
        near = [row for row in rows if (row.protocol, row.model, row.attack.name) == named and self._enough(row)]
        if not near:  # most cells of an empty table: spares reading the recipe
            return []
        meant = (recipes.read(self.recipe).data, self.settings, self.defence)
        found = [row for row in near if (row.data, row.attack, row.defence) == meant and self._measured(row)]
        most = max((row.n for row in found), default=0)
        return [row for row in found if row.n == most]

    def value(self, row: Row) -> float:
        """What the cell shows, in per cent."""
        return 100 * (row.accuracy if self.measure == "accuracy" else row.measures[self.measure])

    def interval(self, row: Row) -> tuple[float, float]:
        """The 95 % Wilson interval of the value, in per cent."""
        low, high = wilson(round(self.value(row) * row.n / 100), row.n)
        return 100 * low, 100 * high

    def _measured(self, row: Row) -> bool:
        return self.measure == "accuracy" or self.measure in row.measures

    def _enough(self, row: Row) -> bool:
        """All images of the test set, or the first of them, and a thousand at least."""
        first = row.n >= FEWEST and row.provenance.images == f"0..{row.n - 1} of test"
        return row.n == self.n or (first and row.n < self.n)
