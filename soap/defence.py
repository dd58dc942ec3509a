"""A defence: a classifier with an optional purifier before it, as one module that can be called and attacked."""

from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import eval_mode, isolated
from soap.detection_scores import Rejection, score_function
from soap.errors import InputError, unknown
from soap.gradient_rules import GRADIENT_RULES, GradientProbe, MeanOverDraws, Relaxed, probe_gradient
from soap.gradient_rules.rule import (
    Purify,
    declared_gradient,
    exact_logits,
    purified_images,
    straight_through_logits,
)
from soap.purifiers.purifier import prior_of
from soap.shapes import Float, Int, Tensor
from soap.validate import describe

BARE, DEFENDED, EXACT, RELAXED = "bare", "defended", "exact", "relaxed"


class Defence(nn.Module):
    """`defence(x)` gives the logits of `classifier` at the purified images.

    The gradient with respect to `x` is the exact one where the purifier is differentiable. It passes straight through
    other purifiers (BPDA, Athalye et al. 2018), because the derivative of sign steps or of rounding is zero almost
    everywhere. The attribute `gradient` of a purifier decides ("exact", or the name of another rule); without it,
    `probe` decides at the first call that needs a gradient. `seen_by` gives the defence with another gradient rule.
    Every call runs in evaluation mode, because batch statistics would make a result depend on the other samples.

    classifier: from images to logits. purifier: from images to purified images, as a tensor or as attribute `.x` of
    the result; None for a classifier without a purifier. name: for tables; the classifier's own name by default.
    reject: which inputs `rejects` marks; logits and labels do not depend on it.
    """

    def __init__(
        self,
        classifier: nn.Module,
        purifier: Purify | None = None,
        *,
        reject: Rejection | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        # Stored as `model` and `purify`: they are the prefixes of the state dict, which stored fingerprints include.
        self.model = classifier
        self.purify = purifier
        self.prior = None if purifier is None else prior_of(purifier)  # its weights belong to the fingerprint
        self.name = str(getattr(classifier, "name", type(classifier).__name__)) if name is None else name
        self.reject = reject
        self._purifies_inside = False
        self._probe: GradientProbe | None = None
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
                if torch.is_grad_enabled() and x.requires_grad and self._is_exact(x):
                    return exact_logits(self.model, self.purify, x)
                return straight_through_logits(self.model, x, purified_images(self.purify, x))
            logits: Tensor = self.model(x)
            return logits

    def labels(self, x: Float[Tensor, "batch *shape"]) -> Int[Tensor, "batch"]:
        """Return the predicted classes."""
        with torch.no_grad():
            predicted: Tensor = self(x).argmax(1)
        return predicted

    def score(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch"]:
        """Return how suspicious every sample is, by the score of `reject`."""
        if self.reject is None:
            raise InputError("the defence has no score; give reject=Rejection(score, threshold).")
        return score_function(self.reject.score, self.model, self.purify)(x).detach()

    def rejects(self, x: Float[Tensor, "batch *shape"]) -> Tensor:
        """Return which samples have a score above the threshold; none without `reject`."""
        if self.reject is None:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return self.score(x) > self.reject.threshold

    def classes(self, x: Float[Tensor, "batch *shape"]) -> int:
        """Return the number of classes, from the logits of the first sample of `x`."""
        with isolated(self), torch.no_grad():
            logits = self(x[:1])
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise InputError(f"{self.name} returned {describe(logits)}, expected float logits of shape [1, classes].")
        return logits.shape[1]

    def probe(self, x: Float[Tensor, "batch *shape"], *, seed: int = 0) -> GradientProbe:
        """Return whether the defence is random and whether its exact gradient is sound, tried on a few samples of `x`.

        `forward` uses the result from then on, unless the purifier declares its gradient.
        """
        self._probe = probe_gradient(self.model, self.purify, x, seed=seed)
        return self._probe

    def rules(self, probe: GradientProbe | None = None) -> tuple[str, ...]:
        """Return the names of the gradient rules that apply to this defence.

        probe: decides about "exact" and "relaxed"; without it, "exact" applies if the purifier declares it. A network
        that purifies inside its forward pass has no other rule, and a classifier without a purifier has none.
        """
        tried = {EXACT: declared_gradient(self.purify) == EXACT, RELAXED: False}
        if probe is not None:
            tried = {EXACT: probe.exact, RELAXED: probe.relaxed}
        return BARE, DEFENDED, *(name for name in GRADIENT_RULES if self._applies(name) and tried.get(name, True))

    def seen_by(
        self, rule: str, *, scale: float = 1.0, draws: int = 1, imitation: nn.Module | None = None, seed: int = 0
    ) -> nn.Module | None:
        """Return the module that an attack with this gradient rule sees; None if the rule does not apply.

        - "bare": the classifier without the purifier (the whole network if the classifier is unknown).
        - "defended": the defence with the gradient that autograd gives, see the class.
        - "exact": autograd through the purifier, whether it is sound or not (`probe` tells); for `of_module`, the
          network.
        - "relaxed": the same, where rounding and detached results count as the identity.
        - "surrogate": an imitation of the purifier is differentiated in its place.
        - "straight-through", "start", "iterates", "unrolled": see `soap.gradient_rules`.

        scale: width of the surrogate of the sign function, for "unrolled" only. imitation: of `fit_surrogate`, for
        "surrogate" only. draws, seed: with more than one draw, the module is a `MeanOverDraws` of that many draws of a
        random defence, with the gradient rule above (expectation over transformation).
        """
        if rule not in (BARE, DEFENDED, *GRADIENT_RULES):
            raise unknown("gradient rule", rule, (BARE, DEFENDED, *GRADIENT_RULES))
        validate.at_least("draws", draws, 1)
        if not self._applies(rule):
            return None
        model = self._with_rule(rule, scale, imitation)
        return model if draws == 1 else MeanOverDraws(model, draws, seed)

    def _with_rule(self, rule: str, scale: float, imitation: nn.Module | None) -> nn.Module:
        if rule == RELAXED:
            return Relaxed(self.model, self.purify)
        if rule == BARE or self.purify is None:
            return self.model
        if rule == DEFENDED:
            return self
        settings: dict[str, dict[str, Any]] = {"unrolled": {"scale": scale}, "surrogate": {"imitation": imitation}}
        return GRADIENT_RULES[rule](self.model, self.purify, **settings.get(rule, {}))

    def _applies(self, rule: str) -> bool:
        """Return whether `seen_by` can apply the rule; for "exact", whether the gradient exists is not tried."""
        if rule in (BARE, DEFENDED):
            return True
        if self.purify is None:
            return self._purifies_inside and rule in (EXACT, RELAXED)
        return GRADIENT_RULES[rule].applies_to(self.purify)

    def _is_exact(self, x: Tensor) -> bool:
        """Return whether the purifier's exact gradient is sound, by its declaration or else by a probe made once."""
        declared = declared_gradient(self.purify)
        if declared is not None:
            return declared == EXACT
        return (self._probe or self.probe(x)).exact
