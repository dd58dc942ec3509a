"""Sweeps behind the paper's curves and ablations: beta, gamma x T, the radius, the loss of rotation prediction.

Each sweep appends the rows that its store does not have. `row_queries` finds them among all rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch.nn import functional as F

from soap import validate
from soap.attacks import PGD, AuxiliaryAwarePGD
from soap.auxiliary import JointModel, Rotation, all_turns
from soap.auxiliary.rotation import TURNS
from soap.data import Dataset
from soap.errors import InputError, unknown
from soap.evaluation import PAPER, Clean
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import TransferRun, Watch, evaluate_transfer
from soap.purifiers import SOAP
from soap.results import Row, Store
from soap.shapes import Float, Tensor
from soap.specs import attack_spec

AUXILIARY_AWARE = "auxiliary-aware"
"""Protocol: the attack adds the auxiliary loss with weight beta, but does not know the purifier's steps."""

BETAS = (-100.0, -10.0, -1.0, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 10.0, 100.0)
GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Step sizes of the heat map, as multiples of the model's step size."""
STEPS = (1, 2, 5, 10, 20)
CROSS_ENTROPY = "cross entropy"
"""Setting `loss` of a rotation task that purifies by cross entropy."""


class SweepOptions(TypedDict, total=False):
    """Options of `evaluate_transfer` beside attacks and purifiers."""

    store: Store | None
    batch: int
    seed: int
    watch: Watch
    stop: Callable[[], bool]


def auxiliary_aware(
    model: JointModel,
    data: Dataset,
    betas: Sequence[float] = BETAS,
    *,
    attack: PGD | None = None,
    **options: Unpack[SweepOptions],
) -> list[Row]:
    """Accuracy before and after purification under the auxiliary-aware attack of every beta (Figure 5).

    Two rows for each beta, with the attack named "beta=...": bare classifier and min-aux. attack: gives radius, step
    size and steps; by default the paper's PGD.
    """
    base, purifier = attack or paper_pgd(data), SOAP(model)
    batch, store = options.get("batch", 500), options.get("store")
    validate.at_least("batch", batch, 1)
    run = TransferRun(
        AUXILIARY_AWARE,
        model,
        data,
        gather(model, data, seed=options.get("seed", 0), batch=batch),
        batch,
        options.get("watch", lambda what, done, total: None),
        options.get("stop", lambda: False),
    )
    known = {row.key: row for row in (store.read() if store else [])}
    task = model.auxiliary.settings()  # the attack differentiates the auxiliary loss
    rows: list[Row] = []
    for beta in betas:
        aware = AuxiliaryAwarePGD(eps=base.eps, step_size=base.step_size, steps=base.steps, beta=beta)
        named, ready = attack_spec(f"beta={beta:g}", aware, **task), partial(replace, aware)
        rows += run.measured(named, ready, [purifier], known=known, store=store)
    return rows


def steps_heat_map(
    model: JointModel,
    data: Dataset,
    gammas: Sequence[float] = GAMMAS,
    steps: Sequence[int] = STEPS,
    *,
    attack: PGD | None = None,
    **options: Unpack[SweepOptions],
) -> list[Row]:
    """Accuracy under PGD for every step size gamma (a multiple of the model's own) and number of steps T (section A.2).

    The grid of radii is the model's own in every cell, so that only gamma and T vary. After T steps of gamma no pixel
    has changed by more than gamma * T, for any radius.
    """
    own = SOAP(model)
    purifiers = [SOAP(model, step_size=own.step_size * gamma, steps=number) for gamma in gammas for number in steps]
    return evaluate_transfer(model, data, {"pgd": attack or paper_pgd(data)}, purifiers, **options)


def fixed_radii(
    model: JointModel,
    data: Dataset,
    radii: Sequence[float] | None = None,
    *,
    attack: PGD | None = None,
    **options: Unpack[SweepOptions],
) -> list[Row]:
    """Accuracy under PGD if every image is purified with the same radius, and with min-aux (section 3.3).

    radii: by default from 0 to gamma * T, the largest possible change of a pixel, in steps of gamma / 2.
    """
    own = SOAP(model)
    chosen = [k * own.step_size / 2 for k in range(2 * own.steps + 1)] if radii is None else radii
    purifiers = [own, *(SOAP(model, eps=float(radius)) for radius in chosen)]
    return evaluate_transfer(model, data, {"pgd": attack or paper_pgd(data)}, purifiers, **options)


def rotation_losses(
    model: JointModel, data: Dataset, *, attack: PGD | None = None, **options: Unpack[SweepOptions]
) -> list[Row]:
    """Accuracy of rotation prediction purified by squared error, as in the paper, and by cross entropy (section 3.4).

    Under PGD and on clean images, with min-aux. The rows' measures have the mean chosen radius.
    """
    task = model.auxiliary
    if not isinstance(task, Rotation):
        raise InputError(
            f"{model.name} has the auxiliary task {type(task).__name__}, expected Rotation, whose "
            "purification losses are compared; use a model whose name ends in -rp."
        )
    by_entropy = SOAP(model)
    by_entropy.task = _ByCrossEntropy(task.head)
    attacks = {"none": Clean(), "pgd": attack or paper_pgd(data)}
    return evaluate_transfer(model, data, attacks, [SOAP(model), by_entropy], **options)


def label_leaking(model: JointModel, data: Dataset, **options: Unpack[SweepOptions]) -> list[Row]:
    """Accuracy of a network on clean images and under FGSM; higher under FGSM means that labels leak (section 4.1)."""
    return evaluate_transfer(model, data, {name: PAPER[_known(data)][name] for name in ("none", "fgsm")}, [], **options)


def paper_pgd(data: Dataset) -> PGD:
    """The paper's PGD attack on a data set."""
    attack = PAPER[_known(data)]["pgd"]
    if not isinstance(attack, PGD):
        raise InputError(f"the paper's PGD on {data.name} is {attack!r}, expected PGD; pass attack=PGD(...).")
    return attack


class _ByCrossEntropy(Rotation):
    """The same head, purified by its training loss."""

    def settings(self) -> dict[str, Any]:
        return {"loss": CROSS_ENTROPY}

    def loss(self, model: JointModel, x: Float[Tensor, "batch c s s"]) -> Float[Tensor, "batch"]:
        """Cross entropy summed over the four copies, as section 3.4 prints it."""
        turns = torch.arange(TURNS, device=x.device).repeat_interleave(len(x))
        entropy = F.cross_entropy(self.head(model.encoder(all_turns(x))), turns, reduction="none")
        return entropy.reshape(TURNS, len(x)).sum(0)


def _known(data: Dataset) -> str:
    if data.name not in PAPER:
        raise unknown("data set of the paper", data.name, PAPER)
    return data.name
