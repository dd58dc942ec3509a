"""Queries on result rows: the row of one table cell, and the rows of one sweep."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from soap import recipes
from soap.attacks.substitute import Substitute
from soap.evaluation import PAPER
from soap.paper.gradient_variants import ATTACKS, VARIANTS
from soap.paper.sweeps import AUXILIARY_AWARE, CROSS_ENTROPY
from soap.recipes import generative
from soap.results import Row, wilson
from soap.specs import BARE, UNDEFENDED, AttackSpec, DefenceSpec, Spec, attack_spec

MIN_IMAGES = 1_000
"""A row on the first images of the test set fills a cell if it has at least so many of them."""
SUBSTITUTE_PREFIX = "substitute-"

SweepCell = TypeVar("SweepCell", bound=Hashable)


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


def by_beta(rows: Iterable[Row], model: str) -> dict[tuple[float, bool], Row]:
    """Rows of the auxiliary-aware attack by (beta, purified)."""
    aware = [row for row in rows if row.protocol == AUXILIARY_AWARE and row.attack.suite is None]
    return _largest_sweep(
        aware,
        model,
        cell=lambda row: (float(row.attack.steps[0].settings["beta"]), row.defence.purifies),
        shared=lambda row: _settings(row.attack.steps[0], without=("beta",)),
    )


def by_steps(rows: Iterable[Row], model: str) -> dict[tuple[float, int], Row]:
    """Rows under PGD, purified with min-aux, by (step size, number of steps)."""
    return _largest_sweep(
        [row for row in _by_own_loss(rows, "pgd") if row.defence.eps == "min-aux"],
        model,
        cell=lambda row: (row.defence.settings["step_size"], row.defence.settings["steps"]),
        shared=lambda row: (row.attack, _settings(row.defence, without=("step_size", "steps"))),
    )


def by_radius(rows: Iterable[Row], model: str) -> dict[float | None, Row]:
    """Rows under PGD by the fixed radius of the purifier; key None is min-aux with the same step size and steps."""
    return _largest_sweep(
        [row for row in _by_own_loss(rows, "pgd") if row.defence.eps == "min-aux" or _radius(row) is not None],
        model,
        cell=_radius,
        shared=lambda row: (row.attack, _settings(row.defence, without=("eps", "grid"))),
    )


def by_rotation_loss(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by (attack, loss): "none" or "pgd"; "squared error" or "cross entropy"."""
    losses = {"squared error": {}, "cross entropy": {"loss": CROSS_ENTROPY}}
    return _by_task(rows, model, ("none", "pgd"), losses)


def by_gradient(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by (attack, gradient variant): one of `ATTACKS`; one of `VARIANTS`."""
    return _by_task(rows, model, ATTACKS, {name: {"gradient": name} for name in VARIANTS})


def by_attack(rows: Iterable[Row], model: str) -> dict[str, Row]:
    """Rows of the bare classifier on clean images ("none") and under FGSM ("fgsm")."""
    bare = [row for row in rows if row.protocol == "transfer" and row.defence == BARE]
    known = [row for row in bare if row.attack.name in ("none", "fgsm")]
    return _largest_sweep(known, model, cell=lambda row: row.attack.name, shared=lambda row: None)


def _purified(rows: Iterable[Row], *attacks: str) -> list[Row]:
    """Rows behind SOAP, of the transfer protocol under one of the attacks."""
    return [
        row for row in rows if (row.protocol, row.defence.name) == ("transfer", "SOAP") and row.attack.name in attacks
    ]


def _task(row: Row) -> dict[str, Any]:
    """Settings of the purifier's auxiliary task."""
    return dict(row.defence.settings.get("task", {}))


def _by_own_loss(rows: Iterable[Row], attack: str) -> list[Row]:
    return [row for row in _purified(rows, attack) if _task(row) != {"loss": CROSS_ENTROPY}]


def _radius(row: Row) -> float | None:
    """The purifier's radius; None if it was chosen for every image."""
    return None if isinstance(row.defence.eps, str) else row.defence.eps


def _by_task(
    rows: Iterable[Row], model: str, attacks: Sequence[str], tasks: Mapping[str, dict[str, Any]]
) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux in fp32 by (attack, name). tasks: settings of the auxiliary task by name."""
    known = [
        row
        for row in _purified(rows, *attacks)
        if row.defence.eps == "min-aux"
        and row.defence.settings.get("precision", "fp32") == "fp32"
        and _task(row) in tasks.values()
    ]
    return _largest_sweep(
        known,
        model,
        cell=lambda row: (row.attack.name, next(name for name, task in tasks.items() if task == _task(row))),
        shared=lambda row: _settings(row.defence, without=("task",)),
    )


def _settings(spec: Spec, without: Sequence[str]) -> str:
    """All settings but those that vary in a sweep, as text."""
    return json.dumps({name: value for name, value in spec.settings.items() if name not in without}, sort_keys=True)


def _largest_sweep(
    rows: Iterable[Row], model: str, *, cell: Callable[[Row], SweepCell], shared: Callable[[Row], Hashable]
) -> dict[SweepCell, Row]:
    """Rows of one sweep by cell: the sweep with most cells, then most images, then the latest date.

    A store holds rows of several trainings, numbers of images and purifiers; rows of different ones are not mixed.
    shared: what all rows of a sweep have in common.
    """
    sweeps: dict[Hashable, dict[SweepCell, Row]] = {}
    for row in rows:
        if row.model == model:
            by = row.provenance
            common = (shared(row), row.n, by.weights_sha256, by.data_sha256, by.images, by.seed)
            sweeps.setdefault(common, {})[cell(row)] = row
    return max(
        sweeps.values(),
        key=lambda sweep: (len(sweep), next(iter(sweep.values())).n, max(r.provenance.date for r in sweep.values())),
        default={},
    )
