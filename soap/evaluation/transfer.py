"""The transfer protocol of the paper's tables: attack the bare classifier, then purify the attacked images.

The attacker does not know the purifier, so accuracy measured this way is an upper bound on robustness.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from soap import validate
from soap._files import atomic
from soap._runtime import distributed
from soap._runtime.isolation import frozen, isolated
from soap.attacks import FGSM, PGD, Attack, CarliniWagner, DeepFool, MinimalL2, Model, success
from soap.balls import row_norms
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.provenance import gather, with_prior
from soap.gradient_rules.rule import Purify
from soap.purifiers import SOAP, Purified
from soap.purifiers.purifier import ClassifierWrapper
from soap.results import Provenance, Row, Store, from_json
from soap.shapes import Tensor
from soap.specs import AttackSpec, attack_spec, defence_spec

PROTOCOL = "transfer"
PURIFIED_MEASURES = {"eps": "eps_pfy", "loss_before": "loss_before", "loss_after": "loss_after"}
"""Fields of `Purified` whose means a row stores, and their names in the row."""

Watch = Callable[[str, int, int], None]
"""Called with the name of the current work, the images done, and the images in all."""


@dataclass(frozen=True, kw_only=True)
class Clean(Attack):
    """No attack: returns the images unchanged."""

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """A copy of the images."""
        return x.clone()


def _paper_attacks(*, eps: float, step_size: float, steps: int, radius: float) -> dict[str, Attack]:
    return {
        "none": Clean(),
        "fgsm": FGSM(eps=eps),
        "pgd": PGD(eps=eps, step_size=step_size, steps=steps),
        "cw": CarliniWagner(radius=radius),
        "df": DeepFool(radius=radius),
    }


_DIGITS = _paper_attacks(eps=0.3, step_size=0.01, steps=40, radius=4.0)
_COLOUR = _paper_attacks(eps=8 / 255, step_size=2 / 255, steps=20, radius=2.0)
PAPER = {"mnist": _DIGITS, "mnist-mini": _DIGITS, "cifar10": _COLOUR, "cifar100": _COLOUR}
"""The paper's attacks on each data set, by the names its tables use (section 4.1)."""


def evaluate_transfer(
    model: nn.Module,
    data: Dataset,
    attacks: Mapping[str, Attack],
    purifiers: Sequence[Purify],
    *,
    store: Store | None = None,
    batch_size: int = 500,
    seed: int = 0,
    save_adversarial: Path | None = None,
    attacked_images: dict[str, Tensor] | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Accuracy of the bare classifier and behind each purifier under each attack: one row each, on all of `data`.

    Rows in `store` are not measured again; new rows are appended as they are made, so a stop loses at most the current
    attack. save_adversarial: a folder for the attacked images, one .npz for each attack.
    attacked_images: a dictionary that receives the attacked images by the attack's name.

    Several processes share the batches and return the same rows; only the first reads and writes the store.
    """
    validate.at_least("batch_size", batch_size, 1)
    validate.inputs(data.x, model)
    validate.labels(data.y, data.x, getattr(model, "classes", None))
    if not attacks:
        raise InputError("no attack given, expected at least one, e.g. 'pgd' (or 'none' for clean images).")
    run = TransferRun(
        PROTOCOL, model, data, gather(model, data, seed=seed, batch_size=batch_size), batch_size, watch, stop
    )
    known = {row.key: row for row in _stored_rows(store)}
    rows: list[Row] = []
    for name, attack in attacks.items():
        images = {} if attacked_images is None and save_adversarial is not None else attacked_images
        make = partial(attacks.__getitem__, name)
        rows += run.measured(attack_spec(name, attack), make, purifiers, known=known, store=store, images=images)
        if save_adversarial is not None and images and name in images and distributed.processes().is_main:
            save_images(save_adversarial / f"{run.name}-{name}.npz", images[name], data.y)
    return rows


def wrapper_rows(
    rows: Sequence[Row],
    wrappers: Sequence[ClassifierWrapper],
    data: Dataset,
    attacked: Mapping[str, Tensor],
    *,
    store: Store,
    batch_size: int,
) -> list[Row]:
    """A row for each wrapper of a classifier under each attack on that classifier; new ones are appended to the store.

    rows: of `evaluate_transfer`. attacked: the images that it attacked, by the attack's name. Rows in `store` are not
    measured again.
    """
    known = {row.key: row for row in store.read()} if wrappers else {}
    made = []
    for wrapper in wrappers:
        for bare in (row for row in rows if not row.defence.purifies):
            row, x = replace(bare, defence=defence_spec(wrapper), measures={}), attacked.get(bare.attack.name)
            if row.key not in known and x is not None:
                began = time.monotonic()
                parts = zip(torch.split(x, batch_size), torch.split(data.y, batch_size), strict=True)
                with frozen(wrapper), torch.no_grad():
                    correct = sum(int((wrapper(images).argmax(1) == y).sum()) for images, y in parts)
                seconds = round(time.monotonic() - began, 3)
                known[row.key] = replace(row, correct=correct, seconds=seconds)
                if distributed.processes().is_main:
                    store.append(known[row.key])
            if row.key in known:
                made.append(known[row.key])
    return made


@dataclass(frozen=True)
class TransferRun:
    """What all rows of one evaluation share; it attacks the bare classifier and purifies the attacked images."""

    protocol: str
    model: nn.Module
    data: Dataset
    provenance: Provenance
    batch_size: int
    watch: Watch
    stop: Callable[[], bool]

    @property
    def name(self) -> str:
        """The model's name, or its class."""
        return str(getattr(self.model, "name", type(self.model).__name__))

    def measured(
        self,
        spec: AttackSpec,
        make: Callable[[], Attack | None],
        purifiers: Sequence[Purify],
        *,
        known: dict[str, Row],
        store: Store | None,
        images: dict[str, Tensor] | None = None,
    ) -> list[Row]:
        """The rows of one attack, bare and behind each purifier; rows missing from `known` are measured and added.

        make: returns the attack, or None after a stop; called only when a row is missing or `images` is given, which
        receives the attacked images.
        """
        planned = {self.plan(spec, purifier).key: purifier for purifier in (None, *purifiers)}
        attack: Attack | None = None
        x_adv: Tensor | None = None
        seconds = 0.0
        if images is not None or not known.keys() >= planned.keys():
            began = time.monotonic()
            attack = make()
            x_adv = None if attack is None else self.attacked(spec.name, attack)
            seconds = time.monotonic() - began
            if x_adv is not None and images is not None:
                images[spec.name] = x_adv
        for key, purifier in planned.items():
            if key not in known and attack is not None and x_adv is not None:
                row = self.scored(self.plan(spec, purifier), attack, purifier, x_adv, seconds)
                if row is not None:
                    known[key] = row
                    if store is not None and distributed.processes().is_main:
                        store.append(row)
        return [known[key] for key in planned if key in known]

    def plan(self, spec: AttackSpec, purifier: Purify | None) -> Row:
        """The row before it is measured."""
        return Row(
            protocol=self.protocol,
            model=self.name,
            data=self.data.name,
            attack=spec,
            defence=defence_spec(purifier),
            n=len(self.data),
            correct=0,
            seconds=0.0,
            provenance=with_prior(self.provenance, self.model, purifier),
        )

    def attacked(self, name: str, attack: Attack) -> Tensor | None:
        """All images attacked, batch by batch; None after a stop."""
        x_adv = torch.zeros_like(self.data.x)
        for rows in self._batches(name):
            if rows is None:
                return None
            x_adv[rows] = attack(self.model, self.data.x[rows], self.data.y[rows])
        distributed.processes().sum_disjoint(x_adv)
        return x_adv

    def _batches(self, shown: str | None) -> Iterator[slice | None]:
        """The batches of this process, in order; None, and the end, after a stop.

        All processes take the same number of rounds, so that they agree on a stop in each round.
        """
        here, total = distributed.processes(), len(self.data)
        for first in range(0, total, self.batch_size * here.world_size):
            if here.any(self.stop()):
                yield None
                return
            own = first + here.rank * self.batch_size
            if own < total:
                yield slice(own, own + self.batch_size)
            if shown is not None:
                self.watch(shown, min(first + here.world_size * self.batch_size, total), total)

    def scored(self, row: Row, attack: Attack, purifier: Purify | None, x_adv: Tensor, seconds: float) -> Row | None:
        """The row with its counts; None after a stop. seconds: of the attack; replaced by those of a purifier."""
        began = time.monotonic()
        sums = torch.zeros(
            -(-len(x_adv) // self.batch_size), 1 + len(PURIFIED_MEASURES), dtype=torch.float64
        )  # per batch
        shown = None if purifier is None else f"{row.attack.name}, purified ({row.defence.eps})"
        for rows in self._batches(shown):
            if rows is None:
                return None
            x, y = x_adv[rows], self.data.y[rows]
            line = sums[rows.start // self.batch_size]
            if purifier is not None:
                purified = _purified(purifier, x, y)
                x = purified if isinstance(purified, Tensor) else purified.x
                for place, name in enumerate(PURIFIED_MEASURES, 1):
                    line[place] = float(getattr(purified, name).sum()) if isinstance(purified, Purified) else torch.nan
            with isolated(self.model), torch.no_grad():
                line[0] = int((self.model(x).argmax(1) == y).sum())
        distributed.processes().sum_disjoint(sums)
        correct, *totals = (sum(column) for column in sums.T.tolist())  # in batch order, as one process adds them
        if purifier is None:
            measures = self._strength(attack, x_adv)
        else:
            names = PURIFIED_MEASURES.values()
            measures = {f"mean_{name}": total / len(x_adv) for name, total in zip(names, totals, strict=True)}
            measures = {name: value for name, value in measures.items() if not math.isnan(value)}
            seconds = time.monotonic() - began
        return replace(row, correct=int(correct), seconds=round(seconds, 3), measures=measures)

    def _strength(self, attack: Attack, x_adv: Tensor) -> dict[str, float]:
        """Mean norms of the perturbations, and the success rate (as the paper defines it) of a minimal-norm attack."""
        delta = x_adv - self.data.x
        measures = {
            "mean_l2": float(row_norms(delta).mean()),
            "mean_linf": float(delta.flatten(1).abs().amax(1).mean()),
        }
        if isinstance(attack, MinimalL2):
            # In the attack's own batches: its points lie on the decision boundary, and batch sizes round differently.
            whole = (self.data.x, x_adv, self.data.y)
            parts = zip(*(torch.split(rows, self.batch_size) for rows in whole), strict=True)
            with isolated(self.model):
                hits = torch.cat([success(self.model, attack.radius, *part) for part in parts])
            measures["success"] = float(hits.float().mean())
        return measures


def _stored_rows(store: Store | None) -> list[Row]:
    """The rows of the store as the first process reads them: all processes must skip the same work."""
    here = distributed.processes()
    rows = store.read() if store is not None and here.is_main else []
    if here.is_distributed:
        rows = [from_json(row) for row in json.loads(here.broadcast_text(json.dumps([row.as_json() for row in rows])))]
    return rows


def _purified(purifier: Purify, x: Tensor, y: Tensor) -> Any:
    """The purifier's result, images or an object with images as `.x`; only the oracle gets the labels."""
    return purifier(x, y) if isinstance(purifier, SOAP) and purifier.eps == "oracle" else purifier(x)


def save_images(path: Path, x: Tensor, y: Tensor) -> None:
    """Write images and labels as an .npz file that `soap.data.load` reads."""
    with atomic.replace_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, x=x.cpu().numpy(), y=y.cpu().numpy())
