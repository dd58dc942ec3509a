"""The rows of a sweep found again among all rows, by what they measured.

A store holds rows of several trainings, numbers of images and purifiers. A picture shows one run alone: of those that
share everything but what is swept, the one with most cells; then most images; then the latest.
"""

import json
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

from soap.evaluation.gradient_evidence import ATTACKS, VARIANTS
from soap.evaluation.sweeps import AUXILIARY_AWARE, CROSS_ENTROPY
from soap.results import Row
from soap.specs import DefenceSpec

BY_CROSS_ENTROPY = json.dumps({"loss": CROSS_ENTROPY})

Cell = TypeVar("Cell", bound=Hashable)
Place = tuple[Hashable, Cell] | None
"""Of a row: what it shares with others of its run, and its own cell; None where it is not of the sweep."""


class SoapSettings(NamedTuple):
    """Settings of a SOAP purifier, from its specification. eps: "min-aux", "oracle" or a radius."""

    eps: float | str
    grid: tuple[float, ...]
    gamma: float
    steps: int
    task: str
    precision: str

    @property
    def radius(self) -> float | None:
        """The fixed radius, or None where it was chosen for every image."""
        return None if isinstance(self.eps, str) else self.eps


def settings_of(defence: DefenceSpec) -> SoapSettings | None:
    """The settings of a SOAP purifier; None for anything else."""
    if defence.name != "SOAP" or not {"eps", "step_size", "steps"} <= defence.settings.keys():
        return None
    own = defence.settings
    return SoapSettings(
        eps=own["eps"],
        grid=tuple(own.get("grid", ())),
        gamma=own["step_size"],
        steps=own["steps"],
        task=json.dumps(own.get("task", {}), sort_keys=True),
        precision=own.get("precision", "fp32"),
    )


def by_beta(rows: Iterable[Row], model: str) -> dict[tuple[float, bool], Row]:
    """Rows of the auxiliary-aware attack by beta and whether they were purified."""

    def place(row: Row) -> Place[tuple[float, bool]]:
        settings = dict(row.attack.steps[0].settings)
        if row.protocol != AUXILIARY_AWARE or row.attack.suite is not None or "beta" not in settings:
            return None
        beta = float(settings.pop("beta"))
        return json.dumps(settings, sort_keys=True), (beta, row.defence.purifies)

    return _one_run(rows, model, place)


def by_steps(rows: Iterable[Row], model: str) -> dict[tuple[float, int], Row]:
    """Rows under PGD, purified with min-aux, by step size and number of steps."""

    def place(row: Row) -> Place[tuple[float, int]]:
        own = _transfer(row, "pgd")
        if own is None or own.eps != "min-aux" or own.task == BY_CROSS_ENTROPY:
            return None
        return (row.attack.steps, own.grid, own.task, own.precision), (own.gamma, own.steps)

    return _one_run(rows, model, place)


def by_radius(rows: Iterable[Row], model: str) -> dict[float | None, Row]:
    """Rows under PGD by the fixed radius of their purifier; None is min-aux with the same gamma and T."""

    def place(row: Row) -> Place[float | None]:
        own = _transfer(row, "pgd")
        if own is None or own.eps == "oracle" or own.task == BY_CROSS_ENTROPY:
            return None
        return (row.attack.steps, own.gamma, own.steps, own.task, own.precision), own.radius

    return _one_run(rows, model, place)


def by_rotation_loss(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by attack ("none", "pgd") and loss: "squared error" or "cross entropy"."""

    def place(row: Row) -> Place[tuple[str, str]]:
        own = _transfer(row, "none", "pgd")
        if own is None or own.eps != "min-aux" or own.task not in ("{}", BY_CROSS_ENTROPY) or own.precision != "fp32":
            return None
        loss = "cross entropy" if own.task == BY_CROSS_ENTROPY else "squared error"
        return (own.grid, own.gamma, own.steps), (row.attack.name, loss)

    return _one_run(rows, model, place)


def by_gradient(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by attack ("none", "fgsm", "pgd") and gradient, one of `VARIANTS`."""
    named = {json.dumps({"gradient": name}): name for name in VARIANTS}

    def place(row: Row) -> Place[tuple[str, str]]:
        own = _transfer(row, *ATTACKS)
        if own is None or own.eps != "min-aux" or own.task not in named or own.precision != "fp32":
            return None
        return (own.grid, own.gamma, own.steps), (row.attack.name, named[own.task])

    return _one_run(rows, model, place)


def by_attack(rows: Iterable[Row], model: str) -> dict[str, Row]:
    """Rows of the bare network on clean images ("none") and under FGSM ("fgsm")."""

    def place(row: Row) -> Place[str]:
        fits = row.protocol == "transfer" and row.attack.name in ("none", "fgsm") and not row.defence.purifies
        return ((), row.attack.name) if fits else None

    return _one_run(rows, model, place)


def _transfer(row: Row, *attacks: str) -> SoapSettings | None:
    """The purifier of a row of the transfer protocol under one of the attacks."""
    return settings_of(row.defence) if row.protocol == "transfer" and row.attack.name in attacks else None


def _one_run(rows: Iterable[Row], model: str, place: Callable[[Row], Place[Cell]]) -> dict[Cell, Row]:
    runs: dict[Hashable, dict[Cell, Row]] = {}
    for row in rows:
        found = place(row) if row.model == model else None
        if found is not None:
            by = row.provenance
            shared = (found[0], row.n, by.weights_sha256, by.data_sha256, by.images, by.seed)
            runs.setdefault(shared, {})[found[1]] = row
    return max(
        runs.values(),
        key=lambda run: (len(run), next(iter(run.values())).n, max(row.provenance.date for row in run.values())),
        default={},
    )
