"""Families of rows behind the paper's curves and ablations: beta, gamma x T, the radius, the loss of rotation.

Each appends to a store what is not in it yet, like `transfer`, which measures them all. Where they are found again:
`swept.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch.nn import functional as F

from soap import validate
from soap.attacks import PGD, AuxiliaryAwarePGD
from soap.auxiliary import JointModel, Rotation, all_turns
from soap.auxiliary.rotation import TURNS
from soap.auxiliary.task import Classifies
from soap.data import Dataset
from soap.errors import InputError, unknown
from soap.evaluation.provenance import gather
from soap.evaluation.threats import PAPER, Clean
from soap.evaluation.transfer import Subject, Watch, transfer
from soap.purifiers import SOAP
from soap.results import Row, Store
from soap.shapes import Float, Tensor

AUXILIARY_AWARE = "auxiliary-aware"
"""The protocol in which the attacker weighs the auxiliary loss, but does not know the purifier's steps."""

BETAS = (-100.0, -10.0, -1.0, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 10.0, 100.0)
GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Step sizes of the heat map, as multiples of the model's own."""
STEPS = (1, 2, 5, 10, 20)
CROSS_ENTROPY = "loss='cross entropy'"
"""What tells a purifier that descends it, in its repr."""


class Run(TypedDict, total=False):
    """How to measure: what `transfer` takes beside attacks and purifiers."""

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
    **run: Unpack[Run],
) -> list[Row]:
    """Accuracy before and after purification under the auxiliary-aware attack of every beta (Figure 5).

    Two rows a beta, the attack named "beta=...": the bare classifier and min-aux. attack: whose radius, step size and
    steps to take; the paper's PGD where none is given.
    """
    base, purifier = attack or paper_pgd(data), SOAP(model)
    batch, store = run.get("batch", 500), run.get("store")
    validate.at_least("batch", batch, 1)
    subject = Subject(
        AUXILIARY_AWARE,
        model,
        data,
        gather(model, data, seed=run.get("seed", 0), batch=batch),
        batch,
        run.get("watch", lambda what, done, total: None),
        run.get("stop", lambda: False),
    )
    known = {row.key: row for row in (store.read() if store else [])}
    further = model.auxiliary.extra_repr()  # the attacker differentiates the auxiliary loss: by which gradient?
    rows: list[Row] = []
    for beta in betas:
        aware = AuxiliaryAwarePGD(eps=base.eps, step_size=base.step_size, steps=base.steps, beta=beta)
        settings = ", ".join(filter(None, [repr(aware), further]))
        ready = partial(replace, aware)
        rows += subject.measured(f"beta={beta:g}", settings, ready, [purifier], known=known, store=store)
    return rows


def steps_heat_map(
    model: JointModel,
    data: Dataset,
    gammas: Sequence[float] = GAMMAS,
    steps: Sequence[int] = STEPS,
    *,
    attack: PGD | None = None,
    **run: Unpack[Run],
) -> list[Row]:
    """Accuracy under PGD for every step size gamma (a multiple of the model's own) and number of steps T (section A.2).

    The radii to choose from are the model's own in every cell, so that gamma and T alone vary; after T steps of gamma
    no pixel has moved by more than gamma * T, whatever the radius.
    """
    own = SOAP(model)
    purifiers = [SOAP(model, step_size=own.step_size * gamma, steps=number) for gamma in gammas for number in steps]
    return transfer(model, data, {"pgd": attack or paper_pgd(data)}, purifiers, **run)


def fixed_radii(
    model: JointModel,
    data: Dataset,
    radii: Sequence[float] | None = None,
    *,
    attack: PGD | None = None,
    **run: Unpack[Run],
) -> list[Row]:
    """Accuracy under PGD where every image is purified with the same radius, and with min-aux (section 3.3).

    radii: by default from 0 to gamma * T, which no pixel can pass, in halves of gamma.
    """
    own = SOAP(model)
    chosen = [k * own.step_size / 2 for k in range(2 * own.steps + 1)] if radii is None else radii
    purifiers = [own, *(SOAP(model, eps=float(radius)) for radius in chosen)]
    return transfer(model, data, {"pgd": attack or paper_pgd(data)}, purifiers, **run)


def rotation_losses(model: JointModel, data: Dataset, *, attack: PGD | None = None, **run: Unpack[Run]) -> list[Row]:
    """Rotation prediction purified by squared error, as the paper does, and by cross entropy (section 3.4).

    Under PGD and on clean images, at the radius min-aux; the row's measures tell the mean radius that was chosen.
    """
    task = model.auxiliary
    if not isinstance(task, Rotation):
        raise InputError(
            f"{model.name} has the auxiliary task {type(task).__name__}, want Rotation: its purification loss is what "
            "is compared. Use a model whose name ends in -rp."
        )
    by_entropy = SOAP(model)
    by_entropy.task = _ByCrossEntropy(task.head)
    attacks = {"none": Clean(), "pgd": attack or paper_pgd(data)}
    return transfer(model, data, attacks, [SOAP(model), by_entropy], **run)


def label_leaking(model: JointModel, data: Dataset, **run: Unpack[Run]) -> list[Row]:
    """A network on clean images and under FGSM: better under attack means that labels leak (section 4.1)."""
    return transfer(model, data, {name: PAPER[_known(data)][name] for name in ("none", "fgsm")}, [], **run)


def paper_pgd(data: Dataset) -> PGD:
    """The PGD attack that the paper runs on a data set."""
    attack = PAPER[_known(data)]["pgd"]
    if not isinstance(attack, PGD):
        raise InputError(f"the paper's PGD on {data.name} is {attack!r}, want a PGD; give an attack.")
    return attack


class _ByCrossEntropy(Rotation):
    """The same head, purified by what it was trained with."""

    def extra_repr(self) -> str:
        return CROSS_ENTROPY

    def loss(self, model: Classifies, x: Float[Tensor, "batch c s s"]) -> Float[Tensor, "batch"]:
        """Cross entropy summed over the four copies, as section 3.4 prints it."""
        turns = torch.arange(TURNS, device=x.device).repeat_interleave(len(x))
        entropy = F.cross_entropy(self.head(model.encoder(all_turns(x))), turns, reduction="none")
        return entropy.reshape(TURNS, len(x)).sum(0)


def _known(data: Dataset) -> str:
    if data.name not in PAPER:
        raise unknown("data set of the paper", data.name, PAPER)
    return data.name
