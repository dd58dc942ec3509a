"""The labels that a defence predicts; those of a random defence over fresh draws, each from a recorded seed.

A random defence classifies every image 2 k times. The first k draws select one attacked version of each image: that of
the strongest attack, or another whose accuracy is lower by more than a standard error. The other k are never used for a
choice: the reported accuracy is theirs. A minimum over many attempts, by the draws it is taken from, would be too low.
"""

from dataclasses import dataclass

import torch

from soap._runtime.isolation import isolated
from soap._runtime.seeding import seed_for
from soap.defence import Defence
from soap.gradient_rules.random_draws import own_generators, seeded_draws
from soap.shapes import Float, Int, Tensor

EVALUATION_SALT = 0x5EED
"""Separates the seeds of evaluation draws from those of attacks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedLabels:
    """defended: of the defence; of a random one, the majority vote of the reporting draws. bare: of the classifier.

    drawn: labels of a random defence by draw, those that select before those that report; no columns otherwise. bare
    is -1 where the classifier is unknown.
    """

    defended: Int[Tensor, "n"]
    bare: Int[Tensor, "n"]
    drawn: Int[Tensor, "n draws"]


def predicted_labels(
    defence: Defence, x: Float[Tensor, "n *shape"], *, draws: int = 1, seed: tuple[int, ...] = ()
) -> PredictedLabels:
    """The labels of images. draws: k of a random defence, 1 for a deterministic one. seed: of the draws."""
    with isolated(defence), torch.no_grad():
        if draws == 1:
            defended, drawn = defence.labels(x), torch.empty((len(x), 0), dtype=torch.int64, device=x.device)
        else:
            drawn = drawn_labels(defence, x, draws=2 * draws, seed=seed)
            defended = drawn[:, draws:].mode(1).values
        if defence.classifier is None:
            bare = torch.full_like(defended, -1)
        else:
            bare = defence.classifier(x).argmax(1) if defence.purifies else defended
    return PredictedLabels(defended=defended, bare=bare, drawn=drawn)


def drawn_labels(
    defence: Defence, x: Float[Tensor, "n *shape"], *, draws: int, seed: tuple[int, ...]
) -> Int[Tensor, "n draws"]:
    """The labels of a random defence over draws with recorded seeds."""
    generators = own_generators(defence.model, defence.purifier)
    found = []
    for draw in range(draws):
        with seeded_draws(seed_for(EVALUATION_SALT, *seed, draw), generators):
            found.append(defence.labels(x))
    return torch.stack(found, 1)
