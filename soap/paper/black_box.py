"""The `black-box` protocol, that of the paper's Table 4 (section 4.2): attack a copy of the classifier, then purify.

The attacker owns the first 150 test images, has the target label them and what it grows from them, and trains a
substitute on the answers; FGSM on the substitute then makes the adversarial examples. The paper has the images
"labeled by the target model" and does not say whether behind the purifier. Here the bare classifier answers, as it is
the bare classifier that is attacked in the other tables: the paper's row "oracle" could not answer an attacker at all,
since it needs the true label. So one substitute serves every row of a target, and purification meets it unawares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from soap import validate
from soap._runtime.isolation import isolated
from soap.attacks import Substitute, Transfer
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import Subject, Watch
from soap.purifiers import Purifier
from soap.results import Row, Store
from soap.shapes import Tensor

PROTOCOL = "black-box"

SUBSTITUTES: dict[str, Substitute] = {
    "substitute-fcn": Substitute(network="fcn"),
    "substitute-cnn": Substitute(network="cnn"),
}
"""The columns of Table 4, by the names rows give to the attack."""


class _StoppedError(Exception):
    """Asked to stop while the substitute was being trained."""


def black_box(
    model: JointModel,
    data: Dataset,
    substitutes: Mapping[str, Substitute],
    purifiers: Sequence[Purifier],
    *,
    store: Store | None = None,
    batch: int = 500,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """One row for the bare classifier and one for each purifier against each substitute.

    The first images of `data`, as many as the substitute has seeds, are the attacker's and are left out of the score.
    Rows already in `store` are not measured again and their substitutes not trained; new ones are appended as they
    are made. seed: noted in the rows, as `transfer` does; the substitutes have their own. A stop is heard between
    rounds of a substitute's training and between batches.
    """
    validate.at_least("batch", batch, 1)
    validate.inputs(data.x, model)
    validate.labels(data.y, data.x, model.classes)
    if not substitutes:
        raise InputError("no substitute was named, want at least one, e.g. SUBSTITUTES of this module.")
    for name, settings in substitutes.items():
        if not isinstance(settings.network, str):
            raise InputError(
                f"{name} has a network built by a function, which no row could name; want an architecture's name, "
                "e.g. network='cnn'."
            )
        if len(data) <= settings.seeds:
            raise InputError(
                f"got {len(data)} images, want more than the {settings.seeds} that are the attacker's: the others "
                "are what is scored."
            )
    known = {row.key: row for row in (store.read() if store else [])}
    everything = gather(model, data, seed=seed, batch=batch)
    rows: list[Row] = []
    for name, settings in substitutes.items():
        mine = settings.seeds
        scored = replace(data, x=data.x[mine:], y=data.y[mine:])  # with the sha256 of all: the attacker's matter too
        images = f"{mine}..{len(data) - 1} of {data.split}; those before are the attacker's"
        subject = Subject(PROTOCOL, model, scored, replace(everything, images=images), batch, watch, stop)
        steal = partial(_stolen, model, data.x[:mine], name, settings, watch, stop)
        rows += subject.measured(name, repr(settings), steal, purifiers, known=known, store=store)
    return rows


def _stolen(
    model: JointModel, x: Tensor, name: str, settings: Substitute, watch: Watch, stop: Callable[[], bool]
) -> Transfer | None:
    """The attack through a substitute that learned from the bare classifier's answers; None when asked to stop."""
    asked = 0

    def answers(queries: Tensor) -> Tensor:
        nonlocal asked
        if stop():
            raise _StoppedError
        asked += len(queries)
        watch(f"{name}, queries", asked, settings.seeds * 2**settings.rounds)
        with isolated(model), torch.no_grad():
            labels: Tensor = model(queries).argmax(1)
        return labels

    try:
        return Transfer(substitute=settings.train(answers, x), settings=settings)
    except _StoppedError:
        return None
