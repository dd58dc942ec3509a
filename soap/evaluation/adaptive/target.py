"""What is measured: a whole defence, and what an attacker may know of its parts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from soap._runtime.isolation import isolated
from soap.auxiliary import JointModel
from soap.defence import Defence
from soap.errors import InputError
from soap.purifiers import Purifier
from soap.purifiers.purifier import radius_of
from soap.shapes import Float, Tensor
from soap.validate import describe

BARE, DEFENDED = "bare", "defended"
BPDA, START, TRAJECTORY, UNROLLED = "bpda", "bpda-start", "bpda-trajectory", "unrolled"
RULES = {BPDA: "straight-through", START: "start", TRAJECTORY: "iterates", UNROLLED: "unrolled"}
"""Protocols and the gradient rules of `Defence.seen_by` that they use."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """A defence. `defended` maps inputs to logits, all of it included.

    bare: the classifier behind it, None where they cannot be told apart. purify: what comes before the classifier, None
    where nothing does or it is inside. label: what rows call the defence. eps_pfy: how its radius is chosen, for rows.
    """

    name: str
    defended: nn.Module
    bare: nn.Module | None = None
    purify: Callable[[Tensor], object] | None = None
    label: str = "none"
    eps_pfy: str = "none"

    @classmethod
    def of_model(cls, model: JointModel, purifier: Purifier | None = None) -> "Target":
        """A joint model behind a purifier, or alone, as one that was trained adversarially stands."""
        if purifier is None:
            return cls(name=model.name, defended=model, bare=model)
        eps = radius_of(purifier)
        if eps == "oracle":
            raise InputError("eps='oracle' needs the true label, so nobody can deploy it; evaluate eps='min-aux'.")
        defended = Defence(model, purifier)
        return cls(name=model.name, defended=defended, bare=model, purify=purifier, label=repr(purifier), eps_pfy=eps)

    @classmethod
    def of_parts(cls, classifier: nn.Module, purify: Callable[[Tensor], object], *, name: str) -> "Target":
        """Somebody's classifier behind somebody's purifier: a function from images to images (or to what has `.x`)."""
        return cls(
            name=name, defended=Defence(classifier, purify), bare=classifier, purify=purify, label=f"{name}'s purifier"
        )

    @classmethod
    def of_module(cls, module: nn.Module, *, name: str) -> "Target":
        """A network that may purify, or optimise anything, inside its forward pass."""
        return cls(name=name, defended=module, label=f"inside {name}")

    @property
    def purifies(self) -> bool:
        """Whether a purifier is known to stand before the classifier."""
        return self.purify is not None

    def sight(self, name: str, scale: float = 1.0) -> nn.Module | None:
        """The model as an attacker of that protocol sees it; None where the defence has no such thing.

        scale: of the surrogate, for the unrolled gradient alone.
        """
        if name == BARE:
            return self.bare if self.bare is not None else self.defended
        if name == DEFENDED:
            return self.defended
        if self.bare is None or self.purify is None:
            return None
        return Defence(self.bare, self.purify).seen_by(RULES[name], scale=scale)

    def classes(self, x: Float[Tensor, "batch *shape"]) -> int:
        """How many classes the defence tells apart, by what it says of the first image."""
        with isolated(self.defended), torch.no_grad():
            logits = self.defended(x[:1])
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise InputError(f"{self.name} returned {describe(logits)}, want float logits of shape [1, classes].")
        return logits.shape[1]

    def answers(self, x: Float[Tensor, "batch *shape"]) -> tuple[Tensor, Tensor]:
        """The labels that the defence gives, and those of the classifier alone (-1 where there is none apart)."""
        with torch.no_grad():
            defended = self.defended(x).argmax(1)
            bare = self.bare(x).argmax(1) if self.bare is not None else torch.full_like(defended, -1)
        return defended, bare
