"""Queries on result rows: the row of one table cell, and the rows of one sweep."""

import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

from soap import recipes
from soap.attacks.substitute import Substitute
from soap.evaluation import PAPER
from soap.paper.gradient_variants import ATTACKS, VARIANTS
from soap.paper.sweeps import AUXILIARY_AWARE, CROSS_ENTROPY
from soap.recipes import generative
from soap.results import Row, wilson
from soap.specs import UNDEFENDED, AttackSpec, DefenceSpec, attack_spec

MIN_IMAGES = 1_000
"""A row on the first images of the test set fills a cell if it has at least so many of them."""
SUBSTITUTE_PREFIX = "substitute-"

SweepCell = TypeVar("SweepCell", bound=Hashable)
SweepKey = tuple[Hashable, SweepCell] | None
"""The settings that a row shares with its sweep, and its own cell; None if the row is not part of the sweep."""

CROSS_ENTROPY_TASK = json.dumps({"loss": CROSS_ENTROPY})


def training_epochs(row: Row) -> int | None:
    """Number of epochs that the row's network was trained for; None if the row does not record it."""
    return None if row.training is None else row.training.epochs


def training_seed(row: Row) -> int:
    """Seed of the training behind a row; 0 if it is not recorded, which is the seed of the bundled weights."""
    return 0 if row.training is None else row.training.seed


def attack_radius(row: Row) -> float:
    """eps of the row's attack; 0 for an attack without one."""
    return float(row.attack.steps[0].settings.get("eps", 0.0))


@dataclass(frozen=True, kw_only=True)
class CellQuery:
    """The result row that fills a cell: transfer protocol, whole test set, the paper's settings.

    recipe: the model's. attack: a name of `PAPER`. eps_pfy: "none" (bare classifier; the paper's eps = 0), "min-aux"
    or "oracle". gradient: for label consistency, replaces the recipe's gradient. prior: recipe of a generative model;
    its purifier replaces SOAP. measure: "accuracy", or a key of the row's measures such as "success". n: size of the
    whole test set.
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
        """Recipes whose weights are needed to measure it."""
        return (self.recipe,) if self.prior is None else (self.recipe, self.prior)

    @property
    def needs_text(self) -> str:
        """The same as text: 'mnist-cnn-dr', 'mnist-cnn-no-def behind defense-gan-mnist'."""
        return " behind ".join(self.needs)

    @property
    def epochs(self) -> int:
        """Epochs of the recipe; the training behind a row may be shorter."""
        return recipes.read(self.recipe).training.epochs

    def found_in(self, rows: Iterable[Row]) -> list[Row]:
        """Matching rows with the largest number of images, one or more for each training of the recipe."""
        key = (self.protocol, self.recipe, self.attack)
        named = [row for row in rows if (row.protocol, row.model, row.attack.name) == key]
        near = [row for row in named if self._has_enough_images(row)]
        if not near:  # most cells of an empty table; this avoids reading the recipe
            return []
        exact = (recipes.read(self.recipe).data, self.settings, self.defence)
        found = [row for row in near if (row.data, row.attack, row.defence) == exact and self._has_measure(row)]
        most = max((row.n for row in found), default=0)
        return [row for row in found if row.n == most]

    def filled_by(self, rows: Iterable[Row], n: int) -> bool:
        """Whether a row on at least `n` images fills the cell."""
        known = list(rows)
        return any(row.n >= n for query in (self, replace(self, n=n)) for row in query.found_in(known))

    def value(self, row: Row) -> float:
        """The number in the cell, in per cent."""
        return 100 * (row.accuracy if self.measure == "accuracy" else row.measures[self.measure])

    def interval(self, row: Row) -> tuple[float, float]:
        """95 % Wilson interval of the value, in per cent."""
        low, high = wilson(round(self.value(row) * row.n / 100), row.n)
        return 100 * low, 100 * high

    def _has_measure(self, row: Row) -> bool:
        return self.measure == "accuracy" or self.measure in row.measures

    def _has_enough_images(self, row: Row) -> bool:
        first = row.n >= MIN_IMAGES and row.provenance.images == f"0..{row.n - 1} of test"
        return row.n == self.n or (first and row.n < self.n)


@dataclass(frozen=True, kw_only=True)
class BlackBoxQuery(CellQuery):
    """The row of a cell of Table 4: accuracy under FGSM computed on a substitute of the target (section 4.2).

    attack: "substitute-fcn" or "substitute-cnn", by the substitute's architecture. n: the test images without the
    150 that the attacker starts from.
    """

    protocol: ClassVar[str] = "black-box"
    n: int = 10_000 - Substitute().seeds

    @property
    def settings(self) -> AttackSpec:
        """The attack as rows store it."""
        return attack_spec(self.attack, Substitute(network=self.attack.removeprefix(SUBSTITUTE_PREFIX)))

    def _has_enough_images(self, row: Row) -> bool:
        return row.n == self.n


class SoapSettings(NamedTuple):
    """Settings of a SOAP purifier. eps: "min-aux", "oracle" or a radius. task: the auxiliary task's, as JSON."""

    eps: float | str
    grid: tuple[float, ...]
    gamma: float
    steps: int
    task: str
    precision: str

    @property
    def radius(self) -> float | None:
        """The fixed radius; None if it was chosen for every image."""
        return None if isinstance(self.eps, str) else self.eps


def soap_settings(defence: DefenceSpec) -> SoapSettings | None:
    """Settings of a SOAP purifier; None for any other defence."""
    own = defence.settings
    if defence.name != "SOAP" or not {"eps", "step_size", "steps"} <= own.keys():
        return None
    return SoapSettings(
        eps=own["eps"],
        grid=tuple(own.get("grid", ())),
        gamma=own["step_size"],
        steps=own["steps"],
        task=json.dumps(own.get("task", {}), sort_keys=True),
        precision=own.get("precision", "fp32"),
    )


def by_beta(rows: Iterable[Row], model: str) -> dict[tuple[float, bool], Row]:
    """Rows of the auxiliary-aware attack by (beta, purified)."""

    def key(row: Row) -> SweepKey[tuple[float, bool]]:
        shared = dict(row.attack.steps[0].settings)
        if row.protocol != AUXILIARY_AWARE or row.attack.suite is not None or "beta" not in shared:
            return None
        beta = float(shared.pop("beta"))
        return json.dumps(shared, sort_keys=True), (beta, row.defence.purifies)

    return _largest_sweep(rows, model, key)


def by_steps(rows: Iterable[Row], model: str) -> dict[tuple[float, int], Row]:
    """Rows under PGD, purified with min-aux, by (step size, number of steps)."""

    def key(row: Row) -> SweepKey[tuple[float, int]]:
        own = _transfer(row, "pgd")
        if own is None or own.eps != "min-aux" or own.task == CROSS_ENTROPY_TASK:
            return None
        return (row.attack.steps, own.grid, own.task, own.precision), (own.gamma, own.steps)

    return _largest_sweep(rows, model, key)


def by_radius(rows: Iterable[Row], model: str) -> dict[float | None, Row]:
    """Rows under PGD by the fixed radius of the purifier; key None is min-aux with the same step size and steps."""

    def key(row: Row) -> SweepKey[float | None]:
        own = _transfer(row, "pgd")
        if own is None or own.eps == "oracle" or own.task == CROSS_ENTROPY_TASK:
            return None
        return (row.attack.steps, own.gamma, own.steps, own.task, own.precision), own.radius

    return _largest_sweep(rows, model, key)


def by_rotation_loss(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by (attack, loss): "none" or "pgd"; "squared error" or "cross entropy"."""
    losses = {"{}": "squared error", CROSS_ENTROPY_TASK: "cross entropy"}

    def key(row: Row) -> SweepKey[tuple[str, str]]:
        own = _transfer(row, "none", "pgd")
        if own is None or own.eps != "min-aux" or own.task not in losses or own.precision != "fp32":
            return None
        return (own.grid, own.gamma, own.steps), (row.attack.name, losses[own.task])

    return _largest_sweep(rows, model, key)


def by_gradient(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by (attack, gradient variant): one of `ATTACKS`; one of `VARIANTS`."""
    variants = {json.dumps({"gradient": name}): name for name in VARIANTS}

    def key(row: Row) -> SweepKey[tuple[str, str]]:
        own = _transfer(row, *ATTACKS)
        if own is None or own.eps != "min-aux" or own.task not in variants or own.precision != "fp32":
            return None
        return (own.grid, own.gamma, own.steps), (row.attack.name, variants[own.task])

    return _largest_sweep(rows, model, key)


def by_attack(rows: Iterable[Row], model: str) -> dict[str, Row]:
    """Rows of the bare classifier on clean images ("none") and under FGSM ("fgsm")."""

    def key(row: Row) -> SweepKey[str]:
        fits = row.protocol == "transfer" and row.attack.name in ("none", "fgsm") and not row.defence.purifies
        return ((), row.attack.name) if fits else None

    return _largest_sweep(rows, model, key)


def _transfer(row: Row, *attacks: str) -> SoapSettings | None:
    """The purifier of a row of the transfer protocol under one of the attacks."""
    return soap_settings(row.defence) if row.protocol == "transfer" and row.attack.name in attacks else None


def _largest_sweep(rows: Iterable[Row], model: str, key: Callable[[Row], SweepKey[SweepCell]]) -> dict[SweepCell, Row]:
    """Rows of one sweep by cell: the sweep with most cells, then most images, then the latest date.

    A store holds rows of several trainings, numbers of images and purifiers; rows of different ones are not mixed.
    """
    sweeps: dict[Hashable, dict[SweepCell, Row]] = {}
    for row in rows:
        found = key(row) if row.model == model else None
        if found is not None:
            by = row.provenance
            shared = (found[0], row.n, by.weights_sha256, by.data_sha256, by.images, by.seed)
            sweeps.setdefault(shared, {})[found[1]] = row
    return max(
        sweeps.values(),
        key=lambda sweep: (len(sweep), next(iter(sweep.values())).n, max(r.provenance.date for r in sweep.values())),
        default={},
    )
