"""Sweeps behind the paper's curves and ablations: what each measures, and which rows belong to it.

The transfer protocol measures all of them but the first, whose attack adds the auxiliary loss.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from soap import validate
from soap.attacks import PGD, Attack, AuxiliaryAwarePGD
from soap.auxiliary import Consistency, JointModel, Rotation, all_turns
from soap.auxiliary.consistency import GRADIENTS
from soap.auxiliary.rotation import TURNS
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import PROTOCOL, TransferRun, Watch
from soap.purifiers import SOAP, Purifier
from soap.results import Row, Store
from soap.shapes import Float, Tensor
from soap.specs import BARE, Spec, attack_spec

AUXILIARY_AWARE = "auxiliary-aware"
"""Protocol: the attack adds the auxiliary loss with weight beta, but does not know the purifier's steps."""

BETAS = (-100.0, -10.0, -1.0, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 10.0, 100.0)
GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Step sizes of the heat map, as multiples of the model's step size."""
STEPS = (1, 2, 5, 10, 20)
CROSS_ENTROPY = "cross entropy"
"""Setting `loss` of a rotation task that purifies by cross entropy."""
GRADIENT_ATTACKS = ("none", "fgsm", "pgd")
GRADIENT_VARIANTS = ("paper", "exact", "exact-bilinear", "exact-blurred", "view-two", "stop", "paper-crop-30")
"""In the order of the table in docs/label_consistency.md. Only `GRADIENTS`, which a recipe can choose, can be measured;
rows of the four others are committed and were measured by soap/paper/gradient_variants.py of commit da5e203."""

Attacks = Mapping[str, Attack]


@dataclass(frozen=True)
class Sweep:
    """A family of rows of one model: every attack, without a purifier and behind each purifier.

    words: what varies. size: number of cells. cell: the place of a row in the sweep, None for a row of something else.
    shared: settings that all rows of one sweep have in common.
    """

    words: str
    size: int
    attacks: Callable[[Attacks], Attacks]
    purifiers: Callable[[JointModel], Sequence[Purifier]]
    cell: Callable[[Row], Any]
    shared: Callable[[Row], Hashable]
    protocol: str = PROTOCOL

    def measure(
        self,
        model: JointModel,
        data: Dataset,
        attacks: Attacks,
        *,
        store: Store | None = None,
        batch_size: int = 500,
        seed: int = 0,
        watch: Watch = lambda what, done, total: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Row]:
        """The rows of the sweep; those that `store` does not have are measured and appended.

        attacks: the paper's for this data set, from which the sweep derives its own.
        """
        validate.at_least("batch_size", batch_size, 1)
        purifiers = self.purifiers(model)
        known = {row.key: row for row in (store.read() if store else [])}
        run = TransferRun(
            self.protocol, model, data, gather(model, data, seed=seed, batch_size=batch_size), batch_size, watch, stop
        )
        rows: list[Row] = []
        for name, attack in (chosen := self.attacks(attacks)).items():
            task = model.auxiliary.settings() if isinstance(attack, AuxiliaryAwarePGD) else {}
            make = partial(chosen.__getitem__, name)
            rows += run.measured(attack_spec(name, attack, **task), make, purifiers, known=known, store=store)
        return rows

    def find(self, rows: Sequence[Row], model: str) -> dict[Any, Row]:
        """Rows of one sweep of a model by cell: the sweep with most cells, then most images, then the latest date.

        A store holds rows of several trainings, numbers of images and purifiers; rows of different ones are not mixed.
        """
        sweeps: dict[Hashable, dict[Any, Row]] = {}
        for row in rows:
            if row.model == model and row.protocol == self.protocol and (cell := self.cell(row)) is not None:
                by = row.provenance
                common = (self.shared(row), row.n, by.weights_sha256, by.data_sha256, by.images, by.seed)
                sweeps.setdefault(common, {})[cell] = row
        return max(
            sweeps.values(),
            key=lambda sweep: (
                len(sweep),
                next(iter(sweep.values())).n,
                max(r.provenance.date for r in sweep.values()),
            ),
            default={},
        )


def _only(*names: str) -> Callable[[Attacks], Attacks]:
    return lambda attacks: {name: attacks[name] for name in names}


def _settings(spec: Spec, *without: str) -> str:
    """All settings but those that vary in a sweep, as text."""
    return json.dumps({name: value for name, value in spec.settings.items() if name not in without}, sort_keys=True)


def _attack_and_defence(*without: str) -> Callable[[Row], Hashable]:
    return lambda row: (row.attack, _settings(row.defence, *without))


def _task(row: Row) -> dict[str, Any]:
    """Settings of the purifier's auxiliary task."""
    return dict(row.defence.settings.get("task", {}))


# --- Figure 5: accuracy before and after purification under the auxiliary-aware attack --------------------------------


def _aware_attacks(attacks: Attacks) -> Attacks:
    pgd = attacks["pgd"]
    assert isinstance(pgd, PGD)
    aware = partial(AuxiliaryAwarePGD, eps=pgd.eps, step_size=pgd.step_size, steps=pgd.steps)
    return {f"beta={beta:g}": aware(beta=beta) for beta in BETAS}


def _beta(row: Row) -> tuple[float, bool] | None:
    if row.attack.suite is not None:
        return None
    return float(row.attack.steps[0].settings["beta"]), row.defence.purifies


# --- Step size and number of steps, and one radius for all images, under PGD (sections A.2 and 3.3) -------------------


def _by_steps(model: JointModel) -> list[Purifier]:
    """The grid of radii is the model's own in every cell: after T steps of gamma no pixel changed by more than both."""
    own = SOAP(model)
    return [SOAP(model, step_size=own.step_size * gamma, steps=number) for gamma in GAMMAS for number in STEPS]


def _by_radius(model: JointModel) -> list[Purifier]:
    """Min-aux, and radii from 0 to gamma * T, the largest possible change of a pixel, in steps of gamma / 2."""
    own = SOAP(model)
    return [own, *(SOAP(model, eps=k * own.step_size / 2) for k in range(2 * own.steps + 1))]


def _under_pgd(row: Row) -> bool:
    by_own_loss = row.defence.name == "SOAP" and _task(row) != {"loss": CROSS_ENTROPY}
    return row.attack.name == "pgd" and by_own_loss


def _step(row: Row) -> tuple[float, int] | None:
    """(Step size, number of steps)."""
    settings = row.defence.settings
    return (settings["step_size"], settings["steps"]) if _under_pgd(row) and row.defence.eps == "min-aux" else None


def _radius(row: Row) -> float | str | None:
    """The radius, or "min-aux"."""
    eps = row.defence.eps
    return eps if _under_pgd(row) and (eps == "min-aux" or not isinstance(eps, str)) else None


# --- Losses of rotation prediction, and gradients of label consistency, by attack (section 3.4) -----------------------


def _by_loss(model: JointModel) -> list[Purifier]:
    task = model.auxiliary
    if not isinstance(task, Rotation):
        raise InputError(
            f"{model.name} has the auxiliary task {type(task).__name__}, expected Rotation, whose "
            "purification losses are compared; use a model whose name ends in -rp."
        )
    return [SOAP(model), _purifier(model, _ByCrossEntropy(task.head))]


def _by_gradient(model: JointModel) -> list[Purifier]:
    if not isinstance(model.auxiliary, Consistency):
        raise InputError(
            f"{model.name} has the auxiliary task {type(model.auxiliary).__name__}, expected Consistency, "
            "whose gradients are compared; use a model whose name ends in -lc."
        )
    return [_purifier(model, Consistency(gradient=name)) for name in GRADIENTS]


def _purifier(model: JointModel, task: Rotation | Consistency) -> SOAP:
    purifier = SOAP(model)
    purifier.task = task
    return purifier


class _ByCrossEntropy(Rotation):
    """The same head, purified by its training loss."""

    def settings(self) -> dict[str, Any]:
        return {"loss": CROSS_ENTROPY}

    def loss(self, model: JointModel, x: Float[Tensor, "batch c s s"]) -> Float[Tensor, "batch"]:
        """Cross entropy summed over the four copies, as section 3.4 prints it."""
        turns = torch.arange(TURNS, device=x.device).repeat_interleave(len(x))
        entropy = F.cross_entropy(self.head(model.encoder(all_turns(x))), turns, reduction="none")
        return entropy.reshape(TURNS, len(x)).sum(0)


def _by_task(tasks: Mapping[str, dict[str, Any]], *attacks: str) -> Callable[[Row], tuple[str, str] | None]:
    """(Attack, name of the task) of rows purified with min-aux in fp32. tasks: settings of the auxiliary task."""

    def cell(row: Row) -> tuple[str, str] | None:
        fits = row.defence.name == "SOAP" and row.defence.eps == "min-aux" and row.attack.name in attacks
        if not fits or row.defence.settings.get("precision", "fp32") != "fp32":
            return None
        return next(((row.attack.name, name) for name, task in tasks.items() if task == _task(row)), None)

    return cell


SWEEPS = {
    "betas": Sweep(
        "under the auxiliary-aware attack",
        2 * len(BETAS),
        _aware_attacks,
        lambda model: [SOAP(model)],
        _beta,
        lambda row: _settings(row.attack.steps[0], "beta"),
        AUXILIARY_AWARE,
    ),
    "steps": Sweep(
        "by step size and steps",
        len(GAMMAS) * len(STEPS),
        _only("pgd"),
        _by_steps,
        _step,
        _attack_and_defence("step_size", "steps"),
    ),
    "radii": Sweep(  # from 0 to T = 5 steps of gamma by halves, and the radius chosen for every image
        "with one radius for all images",
        2 * 5 + 1 + 1,
        _only("pgd"),
        _by_radius,
        _radius,
        _attack_and_defence("eps", "grid"),
    ),
    "rotation": Sweep(
        "purified by either loss",
        4,
        _only("none", "pgd"),
        _by_loss,
        _by_task({"squared error": {}, CROSS_ENTROPY: {"loss": CROSS_ENTROPY}}, "none", "pgd"),
        lambda row: _settings(row.defence, "task"),
    ),
    "gradients": Sweep(
        "by the gradient of the purification loss",
        len(GRADIENT_ATTACKS) * len(GRADIENTS),
        _only(*GRADIENT_ATTACKS),
        _by_gradient,
        _by_task({name: {"gradient": name} for name in GRADIENT_VARIANTS}, *GRADIENT_ATTACKS),
        lambda row: _settings(row.defence, "task"),
    ),
    "leaking": Sweep(
        "clean and under FGSM",
        2,
        _only("none", "fgsm"),
        lambda model: [],
        lambda row: row.attack.name if row.defence == BARE and row.attack.name in ("none", "fgsm") else None,
        lambda row: None,
    ),
}
