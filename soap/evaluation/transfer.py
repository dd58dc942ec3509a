"""The `transfer` protocol, that of the paper's tables: attack the bare classifier, then purify the result.

The attacker does not know the purifier, so a figure measured this way is an upper bound on robustness.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from soap import validate
from soap._files import atomic
from soap._runtime import distributed
from soap._runtime.isolation import isolated
from soap.attacks import Attack, MinimalL2, success
from soap.auxiliary import JointModel
from soap.balls import row_norms
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.provenance import gather, with_prior
from soap.purifiers import SOAP, Purified, Purifier
from soap.purifiers.purifier import radius_of
from soap.results import Provenance, Row, Store, from_json
from soap.shapes import Tensor

PROTOCOL = "transfer"
BARE = "none"
PURIFIED = {"eps": "eps_pfy", "loss_before": "loss_before", "loss_after": "loss_after"}
"""What is measured of a purified image, and what it is called in rows."""

Watch = Callable[[str, int, int], None]
"""Called with what is being done, how many images are done, and of how many."""


def transfer(
    model: JointModel,
    data: Dataset,
    attacks: Mapping[str, Attack],
    purifiers: Sequence[Purifier],
    *,
    store: Store | None = None,
    batch: int = 500,
    seed: int = 0,
    save_adversarial: Path | None = None,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """One row for the bare classifier and one for each purifier under each attack, on all images of `data`.

    Rows already in `store` are not measured again; new ones are appended as they are made, so a stop loses at
    most the attack under way. save_adversarial: a folder for the attacked images, one .npz an attack.

    Several processes deal the batches out among them and come to the very same rows; the first alone reads the store
    and writes.
    """
    validate.at_least("batch", batch, 1)
    validate.inputs(data.x, model)
    validate.labels(data.y, data.x, model.classes)
    if not attacks:
        raise InputError("no attack was named, want at least one, e.g. 'pgd' (or 'none' for clean images).")
    subject = Subject(PROTOCOL, model, data, gather(model, data, seed=seed, batch=batch), batch, watch, stop)
    known = {row.key: row for row in _known(store)}
    rows: list[Row] = []
    for name, attack in attacks.items():
        keep = None if save_adversarial is None else save_adversarial / f"{model.name}-{name}.npz"
        ready = partial(attacks.__getitem__, name)
        rows += subject.measured(name, repr(attack), ready, purifiers, known=known, store=store, keep=keep)
    return rows


@dataclass(frozen=True)
class Subject:
    """What all rows of one evaluation share: attack the bare classifier by some protocol, then purify the result."""

    protocol: str
    model: JointModel
    data: Dataset
    provenance: Provenance
    batch: int
    watch: Watch
    stop: Callable[[], bool]

    def measured(
        self,
        name: str,
        settings: str,
        make: Callable[[], Attack | None],
        purifiers: Sequence[Purifier],
        *,
        known: dict[str, Row],
        store: Store | None,
        keep: Path | None = None,
    ) -> list[Row]:
        """The rows of one attack, bare and behind each purifier; those not in `known` are measured and added to it.

        make: the attack, or None when asked to stop; called only where a row is missing or images are to be kept.
        """
        planned = {self.plan(name, settings, purifier).key: purifier for purifier in (None, *purifiers)}
        attack: Attack | None = None
        x_adv: Tensor | None = None
        seconds = 0.0
        if keep is not None or not known.keys() >= planned.keys():
            began = time.monotonic()
            attack = make()
            x_adv = None if attack is None else self.attacked(name, attack)
            seconds = time.monotonic() - began
            if x_adv is not None and keep is not None and distributed.processes().is_main:
                save_images(keep, x_adv, self.data.y)
        for key, purifier in planned.items():
            if key not in known and attack is not None and x_adv is not None:
                row = self.scored(self.plan(name, settings, purifier), attack, purifier, x_adv, seconds)
                if row is not None:
                    known[key] = row
                    if store is not None and distributed.processes().is_main:
                        store.append(row)
        return [known[key] for key in planned if key in known]

    def plan(self, name: str, settings: str, purifier: Purifier | None) -> Row:
        """The row of a figure before it is measured."""
        return Row(
            protocol=self.protocol,
            model=self.model.name,
            data=self.data.name,
            attack=name,
            settings=settings,
            eps_pfy=BARE if purifier is None else radius_of(purifier),
            defence=BARE if purifier is None else repr(purifier),
            n=len(self.data),
            correct=0,
            seconds=0.0,
            provenance=with_prior(self.provenance, self.model, purifier),
        )

    def attacked(self, name: str, attack: Attack) -> Tensor | None:
        """All images attacked, batch by batch; None when asked to stop."""
        x_adv = torch.zeros_like(self.data.x)
        for rows in self._batches(name):
            if rows is None:
                return None
            x_adv[rows] = attack(self.model, self.data.x[rows], self.data.y[rows])
        distributed.processes().sum_disjoint(x_adv)
        return x_adv

    def _batches(self, shown: str | None) -> Iterator[slice | None]:
        """The batches that are this process's to do, one after the other; None, and an end, when asked to stop.

        All processes take as many rounds, so that they agree on a stop in each; some have nothing to do in the last.
        """
        here, total = distributed.processes(), len(self.data)
        for first in range(0, total, self.batch * here.world_size):
            if here.any(self.stop()):
                yield None
                return
            own = first + here.rank * self.batch
            if own < total:
                yield slice(own, own + self.batch)
            if shown is not None:
                self.watch(shown, min(first + here.world_size * self.batch, total), total)

    def scored(self, row: Row, attack: Attack, purifier: Purifier | None, x_adv: Tensor, seconds: float) -> Row | None:
        """The row with its counts; `seconds` is what the attack took, or the purifier where there is one.

        None when asked to stop.
        """
        began = time.monotonic()
        found = torch.zeros(-(-len(x_adv) // self.batch), 1 + len(PURIFIED), dtype=torch.float64)  # a line a batch
        for rows in self._batches(None if purifier is None else f"{row.attack}, purified ({row.eps_pfy})"):
            if rows is None:
                return None
            x, y = x_adv[rows], self.data.y[rows]
            line = found[rows.start // self.batch]
            if purifier is not None:
                purified = _purified(purifier, x, y)
                x = purified.x
                for place, name in enumerate(PURIFIED, 1):
                    line[place] = float(getattr(purified, name).sum())
            with isolated(self.model), torch.no_grad():
                line[0] = int((self.model(x).argmax(1) == y).sum())
        distributed.processes().sum_disjoint(found)
        correct, *sums = (sum(column) for column in found.T.tolist())  # batch by batch, as one process would
        if purifier is None:
            measures = self._strength(attack, x_adv)
        else:
            measures = {f"mean_{of}": total / len(x_adv) for of, total in zip(PURIFIED.values(), sums, strict=True)}
            seconds = time.monotonic() - began
        return replace(row, correct=int(correct), seconds=round(seconds, 3), measures=measures)

    def _strength(self, attack: Attack, x_adv: Tensor) -> dict[str, float]:
        """Size of the perturbations, and the paper's success rate for attacks that look for the smallest one."""
        delta = x_adv - self.data.x
        measures = {
            "mean_l2": float(row_norms(delta).mean()),
            "mean_linf": float(delta.flatten(1).abs().amax(1).mean()),
        }
        if isinstance(attack, MinimalL2):
            # In the batches of the attack: its points lie on the boundary, and other batches round otherwise.
            whole = (self.data.x, x_adv, self.data.y)
            parts = zip(*(torch.split(rows, self.batch) for rows in whole), strict=True)
            with isolated(self.model):
                hits = torch.cat([success(self.model, attack.radius, *part) for part in parts])
            measures["success"] = float(hits.float().mean())
        return measures


def _known(store: Store | None) -> list[Row]:
    """The rows of the store, as the first process reads them: all must leave out the same."""
    here = distributed.processes()
    rows = store.read() if store is not None and here.is_main else []
    if here.is_distributed:
        rows = [from_json(row) for row in json.loads(here.broadcast_text(json.dumps([row.as_json() for row in rows])))]
    return rows


def _purified(purifier: Purifier, x: Tensor, y: Tensor) -> Purified:
    """Purified images; the oracle alone is told the labels."""
    return purifier(x, y) if isinstance(purifier, SOAP) and purifier.eps == "oracle" else purifier(x)


def save_images(path: Path, x: Tensor, y: Tensor) -> None:
    """Write images and labels as an .npz that `soap.data.load` reads back."""
    with atomic.replace_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, x=x.cpu().numpy(), y=y.cpu().numpy())
