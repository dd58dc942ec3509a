"""The `black-box` protocol of the paper's Table 4 (section 4.2): attack a substitute of the classifier, then purify.

The attacker has the first 150 test images, queries the target for labels of these and of images generated from them,
and trains a substitute on the labels. FGSM on the substitute makes the adversarial examples. The paper has the images
"labeled by the target model" and does not say whether that includes the purifier. Here the bare classifier gives the
labels, because the other tables attack the bare classifier and the row "oracle" needs the true label, which a queried
model does not have. So all rows of a target share one substitute, and its training does not involve the purifier.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from soap._runtime.isolation import isolated
from soap.attacks import Substitute, Transfer
from soap.auxiliary import JointModel
from soap.data import Dataset
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import TransferRun, Watch
from soap.purifiers import Purifier
from soap.results import Row, Store
from soap.shapes import Tensor
from soap.specs import attack_spec

PROTOCOL = "black-box"

SUBSTITUTES: dict[str, Substitute] = {
    "substitute-fcn": Substitute(network="fcn"),
    "substitute-cnn": Substitute(network="cnn"),
}
"""The columns of Table 4, by the attack's name in rows."""


class _StoppedError(Exception):
    """`stop` returned True during the training of the substitute."""


def evaluate_black_box(
    model: JointModel,
    data: Dataset,
    substitutes: Mapping[str, Substitute],
    purifiers: Sequence[Purifier],
    *,
    store: Store | None = None,
    batch_size: int = 500,
    seed: int = 0,
    watch: Watch = lambda what, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """One row for the bare classifier and one for each purifier against each substitute.

    The first images of `data`, as many as the substitute has seeds, are the attacker's and do not count. Rows already
    in `store` are not measured again and their substitutes are not trained; new rows are appended at once. seed: is
    recorded in the rows, as by `evaluate_transfer`; the substitutes have their own seeds. stop: is called between
    rounds of a substitute's training and between batches.
    """
    known = {row.key: row for row in (store.read() if store else [])}
    everything = gather(model, data, seed=seed, batch_size=batch_size)
    rows: list[Row] = []
    for name, settings in substitutes.items():
        mine = settings.seeds
        # The sha256 remains that of all images: the attacker's affect the result.
        scored = replace(data, x=data.x[mine:], y=data.y[mine:])
        images = f"{mine}..{len(data) - 1} of {data.split}; those before are the attacker's"
        run = TransferRun(PROTOCOL, model, scored, replace(everything, images=images), batch_size, watch, stop)
        make = partial(_trained_attack, model, data.x[:mine], name, settings, watch, stop)
        rows += run.measured(attack_spec(name, settings), make, purifiers, known=known, store=store)
    return rows


def _trained_attack(
    model: JointModel, x: Tensor, name: str, settings: Substitute, watch: Watch, stop: Callable[[], bool]
) -> Transfer | None:
    """The attack through a substitute trained on the bare classifier's labels; None if `stop` returned True."""
    queried = 0

    def labels_of(queries: Tensor) -> Tensor:
        nonlocal queried
        if stop():
            raise _StoppedError
        queried += len(queries)
        watch(f"{name}, queries", queried, settings.seeds * 2**settings.rounds)
        with isolated(model), torch.no_grad():
            labels: Tensor = model(queries).argmax(1)
        return labels

    try:
        return Transfer(substitute=settings.train(labels_of, x), settings=settings)
    except _StoppedError:
        return None
