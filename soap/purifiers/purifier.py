"""What all purifiers share: result, interface, declarations and settings; and the base classes of two simple kinds."""

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import nn

from soap import validate
from soap._runtime.isolation import frozen
from soap._runtime.progress import purifying
from soap.data.html_view import html_table, image_strip
from soap.errors import InputError
from soap.shapes import Float, Tensor
from soap.specs import Spec, call_text


@dataclass(frozen=True, kw_only=True)
class Purified:
    """The result of a purifier: purified images, the radius used, and the loss before and after, per sample.

    before: the images as they came in, where the purifier keeps them.
    """

    x: Float[Tensor, "batch *shape"]
    eps: Float[Tensor, "batch"]
    loss_before: Float[Tensor, "batch"]
    loss_after: Float[Tensor, "batch"]
    before: Float[Tensor, "batch *shape"] | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """Images before and after, and mean losses, in notebooks."""
        facts = {"purified": len(self.x), "mean eps": f"{float(self.eps.mean()):.3g}"}
        losses = {"loss before": self.loss_before, "loss after": self.loss_after}
        facts |= {name: f"{float(loss.mean()):.4g}" for name, loss in losses.items()}
        return html_table([facts]) + image_strip(*(() if self.before is None else (self.before,)), self.x)


@runtime_checkable
class Purifier(Protocol):
    """`purify(x)` returns purified images. Its repr shows every setting and is its name in result rows."""

    def __call__(self, x: Tensor, /) -> Purified:
        """Return the purified batch."""


class Specified(ABC):
    """What a purifier, or a classifier around a classifier, declares of itself.

    gradient: "exact" if the result is differentiable in `x`; otherwise the name of a gradient rule, "straight-through"
    or "unrolled". random: whether two calls differ. setting_names: the attributes that result rows store. prior: the
    trained network behind a purifier, None without one; its weights belong to the fingerprint of a defence.
    """

    gradient: ClassVar[str] = "exact"
    random: ClassVar[bool] = False
    setting_names: ClassVar[tuple[str, ...]]
    prior: nn.Module | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings, as result rows store them."""
        return {name: getattr(self, name) for name in self.setting_names}

    def spec(self) -> Spec:
        """The name and the settings, as result rows store them."""
        return Spec(name=type(self).__name__, settings=self.settings())

    def __repr__(self) -> str:
        return call_text(self.spec())


def prior_of(purify: object) -> nn.Module | None:
    """Return the generative model of a purifier; None if the purifier has none."""
    return purify.prior if isinstance(purify, Specified) else None


class ImageMap(Specified):
    """One function from images to images, such as a denoiser or a filter: `purify(x)` returns `images(x)`.

    `eps` of the result is the largest change of a value. The losses are mean squared distances to the purified image:
    that of the input, and zero.
    """

    @abstractmethod
    def images(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the purified images; the input is checked, and the network is in evaluation mode without gradients."""

    def __call__(self, x: Float[Tensor, "batch *shape"], *, progress: bool = True) -> Purified:
        """Return the purified batch. Inputs are not modified. With "exact", autograd passes through `.x`.

        progress: show a bar in terminals and notebooks if it takes more than two seconds, for a method with steps.
        """
        validate.inputs(x, self.prior)
        with nullcontext() if self.prior is None else frozen(self.prior), purifying(progress):
            made = self.images(x)
        change = (made - x).detach().flatten(1)
        return Purified(
            x=made,
            eps=change.abs().amax(1),
            loss_before=change.square().mean(1),
            loss_after=change.new_zeros(len(x)),
            before=x.detach(),
        )


class ClassifierWrapper(nn.Module, Specified):
    """A module from images to logits that calls `classifier` on changed copies of the images.

    Evaluate it as `soap.Defence(wrapper)`.
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        if not isinstance(classifier, nn.Module):
            raise InputError(f"got {validate.describe(classifier)}, expected an nn.Module from images to logits.")
        self.classifier = classifier
        for name in ("input_shape", "classes", "training_spec"):  # facts about a model that checks and rows use
            if hasattr(classifier, name):
                setattr(self, name, getattr(classifier, name))

    @property
    def name(self) -> str:
        """The classifier's name with that of the wrapper and its settings."""
        return f"{getattr(self.classifier, 'name', type(self.classifier).__name__)} in {call_text(self.spec())}"
