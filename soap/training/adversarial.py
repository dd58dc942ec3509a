"""Adversarial training through the model's own purifier, and the TRADES loss.

Plain adversarial training (Madry et al. 2017) attacks the classifier and trains it on the attacked images. Behind a
purifier a classifier sees purified images only. So here the attack sees the whole defence, and the classifier is
trained on the purified adversarial images.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch.nn import functional as F

from soap import validate
from soap.attacks import FGSM, PGD
from soap.auxiliary import JointLosses, JointModel, accuracy
from soap.auxiliary.binarity import ends_at_rounded, rounded, rounded_box
from soap.defence import Defence
from soap.errors import InputError
from soap.purifiers import SOAP
from soap.shapes import Float, Int, Tensor

THROUGH = ("classifier", "purifier")


@dataclass(frozen=True, kw_only=True)
class AdversarialTraining:
    """Adversarial training with a choice of what the attack sees and of the loss.

    through: "classifier" attacks the classifier alone. "purifier" attacks the classifier behind the model's own
    purifier, `Defence(model, SOAP(model))`, and trains on the purified results. Gradients pass straight through the
    purifier; for binarity see `perturb`. trades_beta: weight of the divergence in the TRADES loss (Zhang et al. 2019);
    None for the cross-entropy of the adversarial images.
    """

    attack: FGSM | PGD
    through: str = "classifier"
    trades_beta: float | None = None

    def __post_init__(self) -> None:
        validate.choice("through", self.through, THROUGH)
        validate.positive("eps", self.attack.eps)
        validate.radius(self.attack.eps, self.attack.norm if isinstance(self.attack, PGD) else "linf")
        check_one_run(self.attack)
        if self.trades_beta is None:
            return
        validate.positive("trades_beta", self.trades_beta)
        if not isinstance(self.attack, PGD) or self.attack.start != "random":
            raise InputError(
                f"TRADES got {self.attack!r}; expected PGD with start='random', because the divergence that it "
                "increases has no gradient at the clean image."
            )

    def check(self, model: JointModel) -> None:
        """Raise `InputError` if `model` cannot be trained like this."""
        if self.through == "purifier" and (model.task is None or model.purification is None):
            raise InputError(
                f"{model.name} has no purifier to train through; give it an auxiliary task and purifier settings "
                "([auxiliary] and [purifier] in a recipe), or attack the classifier alone (through = 'classifier')."
            )
        trains_task = model.alpha != 0 or (model.purifiable and self.through == "classifier")
        if self.trades_beta is not None and trains_task:
            raise InputError(
                f"TRADES replaces the losses of the task {type(model.task).__name__} of {model.name}; expected no "
                "task, or one without an auxiliary loss and through = 'purifier'. Leave out trades_beta."
            )

    def recordable(self, model: JointModel) -> bool:
        """Return whether `perturb` never waits for the host, so that training can replay it as a CUDA graph."""
        return self.through == "classifier" or ends_at_rounded(model)

    def perturb(
        self,
        model: JointModel,
        x: Float[Tensor, "batch *shape"],
        y: Int[Tensor, "batch"],
        *,
        start: Float[Tensor, "batch *shape"] | None = None,
    ) -> Float[Tensor, "batch *shape"]:
        """Return adversarial images, purified if the attack goes through the purifier.

        start: random points where the attack starts, drawn by the caller.

        If purification rounds, the attack sees the classifier on the straight line between the purified ends of every
        pixel's interval [x - eps, x + eps], and the pixels that it raised or lowered are moved to those ends. The
        gradient is taken at the relaxed point, where the classifier is smooth.
        """
        attack = self.attack if self.trades_beta is None else self._trades_attack(model, x)
        run = partial(attack.perturb, start=start) if isinstance(attack, PGD) else attack.perturb
        if self.through == "classifier":
            # A function is not replayed as a CUDA graph; the loss of TRADES is another one at every step.
            return run(model if self.trades_beta is None else model.forward, x, y)
        if not ends_at_rounded(model) or getattr(attack, "norm", "linf") != "linf":
            return self.purified(model, run(Defence(model, SOAP(model)), x, y))
        eps = attack.eps
        low, high = rounded_box(x, eps)

        def relaxed(point: Tensor) -> Tensor:
            logits: Tensor = model(torch.lerp(low, high, (point - x) / (2 * eps) + 0.5))
            return logits

        found = run(relaxed, x, y)
        return rounded((x + eps * (found - x).sign()).clamp(0, 1))

    def purified(self, model: JointModel, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the images that the classifier is trained on in place of `x`: purified ones behind a purifier."""
        if self.through == "classifier":
            return x
        return rounded(x) if ends_at_rounded(model) else SOAP(model)(x).x

    def trades_losses(
        self,
        model: JointModel,
        clean: Float[Tensor, "batch *shape"],
        adversarial: Float[Tensor, "batch *shape"],
        y: Int[Tensor, "batch"],
    ) -> JointLosses:
        """Return cross-entropy at clean + trades_beta * divergence at adversarial images, and accuracy on the latter.

        Both are purified if the attack goes through the purifier.
        """
        at_clean, at_adversarial = model(torch.cat([clean, adversarial])).chunk(2)
        robust = divergence(at_adversarial, at_clean.softmax(1)).mean()
        loss = F.cross_entropy(at_clean, y) + (self.trades_beta or 0.0) * robust
        return JointLosses(loss, loss.new_zeros(()), accuracy(at_adversarial, y))

    def _trades_attack(self, model: JointModel, x: Tensor) -> PGD:
        """Return the attack, which increases the divergence from the predictions at `x` instead of its own loss."""
        with torch.no_grad():
            clean = model(self.purified(model, x)).softmax(1)
        return replace(cast(PGD, self.attack), loss=lambda logits, y: divergence(logits, clean))


def check_one_run(attack: object) -> None:
    """Raise `InputError` if `attack` starts more than once, which makes a training step wait for its predictions."""
    if isinstance(attack, PGD) and attack.restarts != 1:
        raise InputError(f"restarts is {attack.restarts}; expected 1, one run of the attack, in training.")


def divergence(
    logits: Float[Tensor, "batch classes"], probabilities: Float[Tensor, "batch classes"]
) -> Float[Tensor, "batch"]:
    """Return the Kullback-Leibler divergence of softmax(logits) from `probabilities`."""
    return F.kl_div(logits.log_softmax(1), probabilities, reduction="none").sum(1)
