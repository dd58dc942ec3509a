"""A defence: a classifier with an optional purifier before it, as one module that can be called and attacked."""

import torch
from torch import nn

from soap._runtime.isolation import eval_mode, isolated
from soap.errors import InputError, unknown
from soap.gradient_rules import GRADIENT_RULES, Unrolled
from soap.gradient_rules.rule import Purify, purified_images, straight_through_logits
from soap.purifiers.purifier import prior_of
from soap.shapes import Float, Int, Tensor
from soap.validate import describe

BARE, DEFENDED = "bare", "defended"


class Defence(nn.Module):
    """`defence(x)` gives the logits of `classifier` at the purified images.

    The gradient with respect to `x` passes straight through the purifier (BPDA, Athalye et al. 2018), because the
    derivative of its sign steps is zero almost everywhere. `seen_by` gives the defence with another gradient rule.
    Every call runs in evaluation mode, because batch statistics would make a result depend on the other samples.

    classifier: from images to logits. purifier: from images to purified images, as a tensor or as attribute `.x` of
    the result; None for a classifier without a purifier. name: for tables; the classifier's own name by default.
    """

    def __init__(self, classifier: nn.Module, purifier: Purify | None = None, *, name: str | None = None) -> None:
        super().__init__()
        # Stored as `model` and `purify`: they are the prefixes of the state dict, which stored fingerprints include.
        self.model = classifier
        self.purify = purifier
        self.prior = None if purifier is None else prior_of(purifier)  # its weights belong to the fingerprint
        self.name = str(getattr(classifier, "name", type(classifier).__name__)) if name is None else name
        self._purifies_inside = False
        self.training = False

    @classmethod
    def of_module(cls, module: nn.Module, *, name: str | None = None) -> "Defence":
        """Return the defence of a network that may purify inside its forward pass; its classifier is unknown."""
        defence = cls(module, name=name)
        defence._purifies_inside = True
        return defence

    @property
    def classifier(self) -> nn.Module | None:
        """The classifier after the purifier; None if it is unknown (`of_module`)."""
        return None if self._purifies_inside else self.model

    @property
    def purifier(self) -> Purify | None:
        """The purifier before the classifier; None if there is none, or it is unknown."""
        return self.purify

    @property
    def purifies(self) -> bool:
        """Whether a purifier is known."""
        return self.purify is not None

    def train(self, mode: bool = True) -> "Defence":
        """Stay in evaluation mode for every `mode`."""
        super().train(False)
        return self

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Purify, then classify."""
        with eval_mode(self):
            if self.purify is not None:
                return straight_through_logits(self.model, x, purified_images(self.purify, x))
            logits: Tensor = self.model(x)
            return logits

    def labels(self, x: Float[Tensor, "batch *shape"]) -> Int[Tensor, "batch"]:
        """Return the predicted classes."""
        with torch.no_grad():
            predicted: Tensor = self(x).argmax(1)
        return predicted

    def classes(self, x: Float[Tensor, "batch *shape"]) -> int:
        """Return the number of classes, from the logits of the first sample of `x`."""
        with isolated(self), torch.no_grad():
            logits = self(x[:1])
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise InputError(f"{self.name} returned {describe(logits)}, expected float logits of shape [1, classes].")
        return logits.shape[1]

    def rules(self) -> tuple[str, ...]:
        """Return the names of the gradient rules that apply to this defence."""
        if self._purifies_inside or self.purify is None:
            return BARE, DEFENDED
        return BARE, DEFENDED, *(name for name, rule in GRADIENT_RULES.items() if rule.applies_to(self.purify))

    def seen_by(self, rule: str, *, scale: float = 1.0) -> nn.Module | None:
        """Return the module that an attack with this gradient rule sees; None if the rule does not apply.

        - "bare": the classifier without the purifier (the whole network if the classifier is unknown).
        - "defended": the defence, which autograd passes straight through.
        - "straight-through", "start", "iterates", "unrolled": see `soap.gradient_rules`.

        scale: width of the surrogate of the sign function, for "unrolled" only.
        """
        if rule not in (BARE, DEFENDED, *GRADIENT_RULES):
            raise unknown("gradient rule", rule, (BARE, DEFENDED, *GRADIENT_RULES))
        if rule not in self.rules():
            return None
        if rule == BARE or self.purify is None:
            return self.model
        if rule == DEFENDED:
            return self
        kind = GRADIENT_RULES[rule]
        return kind(self.model, self.purify, scale=scale) if kind is Unrolled else kind(self.model, self.purify)
