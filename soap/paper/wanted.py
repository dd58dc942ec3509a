"""What would fill a cell of the paper: one figure, said in terms of recipes, attacks and purifiers."""

from collections.abc import Iterable
from dataclasses import dataclass

from soap import recipes
from soap.evaluation.threats import PAPER
from soap.purify.soap import label
from soap.results import Row

BARE = "none"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One figure of the transfer protocol, on the whole test set, with the paper's own settings.

    recipe: the model's. attack: a name of `PAPER`. eps_pfy: "none" (the bare classifier, which is what eps = 0 is),
    "min-aux" or "oracle". gradient: for label consistency, the gradient to purify by instead of the recipe's.
    measure: "accuracy", or a key of the row's measures such as "success".
    """

    recipe: str
    attack: str
    eps_pfy: str = BARE
    gradient: str | None = None
    measure: str = "accuracy"
    n: int = 10_000

    @property
    def settings(self) -> str:
        """The attack as rows name it."""
        return repr(PAPER[recipes.read(self.recipe).data][self.attack])

    @property
    def defence(self) -> str:
        """The purifier as rows name it."""
        plan = recipes.read(self.recipe)
        if self.eps_pfy == BARE or plan.purifier is None:
            return BARE
        gradient = self.gradient or plan.auxiliary.get("gradient", "paper")
        further = [f"gradient={gradient!r}"] if plan.task == "consistency" else []
        own = plan.purifier
        return label(self.eps_pfy, tuple(sorted(set(own.grid))), own.step_size, own.steps, *further)

    def found_in(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that measured it: one for each training of the recipe."""
        settings, defence = self.settings, self.defence
        return [
            row
            for row in rows
            if (row.protocol, row.model, row.attack, row.settings, row.defence, row.n)
            == ("transfer", self.recipe, self.attack, settings, defence, self.n)
        ]

    def value(self, row: Row) -> float:
        """What the cell shows, in per cent."""
        return 100 * (row.accuracy if self.measure == "accuracy" else row.measures[self.measure])
