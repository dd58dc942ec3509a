"""The rows of a sweep found again among all rows, by what they measured.

A store holds rows of several trainings, numbers of images and purifiers. A picture shows one run alone: of those that
share everything but what is swept, the one with most cells; then most images; then the latest.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from soap.evaluation.gradient_evidence import ATTACKS, VARIANTS
from soap.evaluation.sweeps import AUXILIARY_AWARE, CROSS_ENTROPY
from soap.results import Row

Cell = TypeVar("Cell", bound=Hashable)
Place = tuple[Hashable, Cell] | None
"""Of a row: what it shares with others of its run, and its own cell; None where it is not of the sweep."""

BARE = "none"
SOAP_REPR = re.compile(
    r"SOAP\(eps=(?P<eps>'[\w-]+'|[\d.e-]+)(?:, grid=\((?P<grid>[^)]*)\))?, "
    r"step_size=(?P<gamma>[\d.e-]+), steps=(?P<steps>\d+)(?:, (?P<further>.*))?\)"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A purifier's settings, read from its name in rows. eps: "min-aux", "oracle" or a number as text."""

    eps: str
    grid: str
    gamma: float
    steps: int
    further: str

    @property
    def radius(self) -> float | None:
        """The fixed radius, or None where it was chosen for every image."""
        return None if self.grid else float(self.eps)


def settings_of(defence: str) -> Settings | None:
    """The settings of a SOAP purifier; None for anything else."""
    match = SOAP_REPR.fullmatch(defence)
    if match is None:
        return None
    found = {key: value or "" for key, value in match.groupdict().items()}
    return Settings(
        eps=found["eps"].strip("'"),
        grid=found["grid"],
        gamma=float(found["gamma"]),
        steps=int(found["steps"]),
        further=found["further"],
    )


def by_beta(rows: Iterable[Row], model: str) -> dict[tuple[float, bool], Row]:
    """Rows of the auxiliary-aware attack by beta and whether they were purified."""

    def place(row: Row) -> Place[tuple[float, bool]]:
        if row.protocol != AUXILIARY_AWARE or not row.attack.startswith("beta="):
            return None
        beta = re.sub(r"beta=[^,)]*", "", row.settings)
        return beta, (float(row.attack.removeprefix("beta=")), row.defence != BARE)

    return _one_run(rows, model, place)


def by_steps(rows: Iterable[Row], model: str) -> dict[tuple[float, int], Row]:
    """Rows under PGD, purified with min-aux, by step size and number of steps."""

    def place(row: Row) -> Place[tuple[float, int]]:
        own = _transfer(row, "pgd")
        if own is None or own.eps != "min-aux" or CROSS_ENTROPY in own.further:
            return None
        return (row.settings, own.grid, own.further), (own.gamma, own.steps)

    return _one_run(rows, model, place)


def by_radius(rows: Iterable[Row], model: str) -> dict[float | None, Row]:
    """Rows under PGD by the fixed radius of their purifier; None is min-aux with the same gamma and T."""

    def place(row: Row) -> Place[float | None]:
        own = _transfer(row, "pgd")
        if own is None or own.eps == "oracle" or CROSS_ENTROPY in own.further:
            return None
        return (row.settings, own.gamma, own.steps, own.further), own.radius

    return _one_run(rows, model, place)


def by_rotation_loss(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by attack ("none", "pgd") and loss: "squared error" or "cross entropy"."""

    def place(row: Row) -> Place[tuple[str, str]]:
        own = _transfer(row, "none", "pgd")
        if own is None or own.eps != "min-aux" or own.further not in ("", CROSS_ENTROPY):
            return None
        return (own.grid, own.gamma, own.steps), (row.attack, "cross entropy" if own.further else "squared error")

    return _one_run(rows, model, place)


def by_gradient(rows: Iterable[Row], model: str) -> dict[tuple[str, str], Row]:
    """Rows purified with min-aux by attack ("none", "fgsm", "pgd") and gradient, one of `VARIANTS`."""
    named = {f"gradient={name!r}": name for name in VARIANTS}

    def place(row: Row) -> Place[tuple[str, str]]:
        own = _transfer(row, *ATTACKS)
        if own is None or own.eps != "min-aux" or own.further not in named:
            return None
        return (own.grid, own.gamma, own.steps), (row.attack, named[own.further])

    return _one_run(rows, model, place)


def by_attack(rows: Iterable[Row], model: str) -> dict[str, Row]:
    """Rows of the bare network on clean images ("none") and under FGSM ("fgsm")."""

    def place(row: Row) -> Place[str]:
        fits = row.protocol == "transfer" and row.attack in ("none", "fgsm") and row.defence == BARE
        return ((), row.attack) if fits else None

    return _one_run(rows, model, place)


def _transfer(row: Row, *attacks: str) -> Settings | None:
    """The purifier of a row of the transfer protocol under one of the attacks."""
    return settings_of(row.defence) if row.protocol == "transfer" and row.attack in attacks else None


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
