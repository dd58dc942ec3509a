"""Certified accuracy: a lower bound on accuracy under every attack of a radius, by interval bounds.

Accuracy under attack is an upper bound; a certificate is a lower one. It exists for networks in a row, without a
purifier or behind purification by binarity, whose purified images form a box that is known exactly.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from soap import validate
from soap._runtime.isolation import isolated
from soap.auxiliary import Binarity, JointModel
from soap.auxiliary.binarity import rounded, rounded_box
from soap.data import Dataset
from soap.errors import InputError
from soap.evaluation.provenance import gather
from soap.evaluation.transfer import Watch
from soap.models.interval_bounds import is_certified
from soap.purifiers import SOAP
from soap.results import Row
from soap.specs import BARE, AttackSpec, AttackStep, defence_spec

PROTOCOL = "certified"
CERTIFIED = "certified accuracy"
BOUNDS = "interval bounds"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Which images of a data set are classified correctly (clean), and at every point within `eps` (certified)."""

    eps: float
    clean: Row
    certified: Row

    @property
    def rows(self) -> Sequence[Row]:
        """The rows that store it."""
        return self.clean, self.certified


def certify(
    model: JointModel,
    data: Dataset,
    *,
    eps: float,
    batch_size: int = 250,
    watch: Watch = lambda what, done, total: None,
) -> Certificate:
    """Bound the accuracy of `model` under all Linf attacks of radius `eps`, with its purifier if its task is binarity.

    The bounds are computed in float64. No attack can lower the certified accuracy, up to the rounding of the deployed
    network.
    """
    validate.positive("eps", eps)
    validate.radius(eps)
    validate.inputs(data.x, model)
    binary = isinstance(model.task, Binarity)
    if model.task is not None and not binary:
        raise InputError(
            f"{model.name} purifies by {type(model.task).__name__}, for which there are no bounds; certify a model "
            "without an auxiliary task, or one with binarity, e.g. mnist-cnn-certified."
        )
    defence = defence_spec(SOAP(model)) if binary else BARE
    began, clean, certified = time.monotonic(), 0, 0
    for first in range(0, len(data), batch_size):
        x, y = data.x[first : first + batch_size], data.y[first : first + batch_size]
        points = rounded(x) if binary else x
        low, high = rounded_box(x, eps) if binary else ((x - eps).clamp(0, 1), (x + eps).clamp(0, 1))
        with isolated(model), torch.no_grad():
            clean += int((model(points).argmax(1) == y).sum())
        certified += int(is_certified(model, low, high, y).sum())
        watch("bounding", min(first + batch_size, len(data)), len(data))
    common = {
        "model": model.name,
        "data": data.name,
        "defence": defence,
        "n": len(data),
        "seconds": round(time.monotonic() - began, 3),
        "provenance": gather(model, data, seed=0, batch_size=batch_size),
        "protocol": PROTOCOL,
    }
    none = AttackSpec(name="none", steps=(AttackStep(name="Clean"),))
    bounds = AttackSpec(name=BOUNDS, steps=(AttackStep(name="IntervalBounds", settings={"eps": eps, "norm": "linf"}),))
    return Certificate(
        eps=eps,
        clean=Row(**common, attack=none, correct=clean),  # type: ignore[arg-type]
        certified=Row(**common, attack=bounds, correct=certified, metric=CERTIFIED),  # type: ignore[arg-type]
    )
