"""Scores that say how suspicious an input is to a defence (higher: more suspicious), and rejection by a threshold.

- "loss": the auxiliary loss before purification, which the purifier descends.
- "eps": the radius that the purifier chose.
- "loss-drop": the auxiliary loss before purification minus the one after it.
- "label-change": 1 if the label of the classifier differs from that of the defence, else 0; plus a quarter of the
  probability that the classifier's own label loses by purification, in [-1/4, 1/4], which breaks ties.

A user's own score is a callable from inputs to one value a sample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap._runtime.progress import silent
from soap.auxiliary import JointModel
from soap.descent import loss_and_gradient
from soap.errors import InputError, unknown
from soap.gradient_rules.rule import Purify
from soap.shapes import Float, Tensor
from soap.validate import describe

SCORES = ("loss", "eps", "label-change", "loss-drop")

ScoreFunction = Callable[[Tensor], Tensor]
"""x [batch, ...] -> one score a sample [batch]."""


@dataclass(frozen=True)
class Rejection:
    """A defence rejects inputs whose score is above `threshold`. score: a name of `SCORES`, or a callable."""

    score: str | ScoreFunction
    threshold: float


def score_function(score: str | ScoreFunction, classifier: nn.Module, purifier: Purify | None) -> ScoreFunction:
    """Return the function that computes a score; it checks shape and values of the result."""
    compute = score if callable(score) else _named_score(score, classifier, purifier)

    def checked(x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        with isolated(classifier):
            values = compute(x)
        if not isinstance(values, Tensor) or values.shape != x.shape[:1]:
            raise InputError(f"the score returned {describe(values)}, expected one value a sample: [{len(x)}].")
        return values

    return checked


def differentiable_score(
    score: str | ScoreFunction, classifier: nn.Module, purifier: Purify | None, x: Float[Tensor, "batch *shape"]
) -> ScoreFunction:
    """Return the function whose gradient an attack on the score follows.

    It is the score itself for "loss" and for a callable with a gradient (tried on the first sample of `x`). All other
    scores have no gradient; for them it is the auxiliary loss.
    """
    if callable(score):
        own = score_function(score, classifier, purifier)
        try:
            loss_and_gradient(own, x[:1])
        except InputError:
            return auxiliary_loss(classifier, purifier)
        return own
    return auxiliary_loss(classifier, purifier)


def auxiliary_loss(classifier: nn.Module, purifier: Purify | None) -> ScoreFunction:
    """Return the loss that the purifier descends; without one, that of the classifier's auxiliary task."""
    own: Any = getattr(purifier, "loss", None)
    if callable(own):
        loss: ScoreFunction = own
        return loss
    if isinstance(classifier, JointModel) and classifier.purifiable:
        return lambda x: classifier.auxiliary.loss(classifier, x)
    raise InputError(
        f"neither the purifier {describe(purifier)} nor the classifier has an auxiliary loss; give the score as a "
        "callable with a gradient, score(x) -> [batch]."
    )


def _named_score(score: str, classifier: nn.Module, purifier: Purify | None) -> ScoreFunction:
    if score == "loss":
        return auxiliary_loss(classifier, purifier)
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    if purifier is None:
        raise InputError(f"the score {score!r} needs a purifier, but the defence has none; use 'loss' or a callable.")
    named: dict[str, Callable[[Tensor, Any], Tensor]] = {
        "eps": lambda x, purified: purified.eps,
        "loss-drop": lambda x, purified: purified.loss_before - purified.loss_after,
        "label-change": lambda x, purified: _label_change(classifier, purified.x, x),
    }
    return lambda x: named[score](x, _purified(purifier, x))


def _purified(purifier: Purify, x: Tensor) -> Any:
    with torch.enable_grad(), silent():  # a user's purifier may rely on gradients being enabled
        made = purifier(x.detach())
    if isinstance(made, Tensor) or not hasattr(made, "loss_after"):
        raise InputError(
            f"the purifier returned {describe(made)}, expected soap.Purified with x, eps, loss_before and loss_after; "
            "use the score 'loss' or a callable."
        )
    return made


def _label_change(classifier: nn.Module, purified: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        before, after = classifier(x).softmax(1), classifier(purified).softmax(1)
    label = before.argmax(1, keepdim=True)
    lost: Tensor = (before.gather(1, label) - after.gather(1, label))[:, 0]
    score: Tensor = lost / 4 + (after.argmax(1) != label[:, 0])
    return score
