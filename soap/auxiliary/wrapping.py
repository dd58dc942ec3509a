"""Somebody's classifier as a joint model: its features found by probing, a task's head sized to fit them.

Nothing is copied. The joint model holds the very module that was given, so training one trains the other, and the
module can be called, saved and moved as before.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary.consistency import Consistency
from soap.auxiliary.features import FeaturesOf, Layer, last_linear
from soap.auxiliary.joint import JointModel, Purification
from soap.auxiliary.reconstruction import Reconstruction
from soap.auxiliary.rotation import TURNS, Rotation
from soap.auxiliary.task import AuxiliaryTask
from soap.errors import InputError, unknown
from soap.models import Network, dense_decoder
from soap.shapes import Tensor

TASKS: dict[str, type[AuxiliaryTask]] = {
    "consistency": Consistency, "reconstruction": Reconstruction, "rotation": Rotation,
}  # fmt: skip

COLOUR = Purification(step_size=4 / 255, steps=5, grid=tuple(k * 4 / 255 for k in range(11)))
OTHER = Purification(step_size=0.1, steps=5, grid=tuple(k / 10 for k in range(11)))
"""The paper's settings for CIFAR and for MNIST: something to start from. `soap.evaluation.tuning` finds better ones."""


def wrap(
    classifier: nn.Module,
    task: str | AuxiliaryTask = "consistency",
    *,
    shape: tuple[int, ...],
    encoder: nn.Module | None = None,
    head: nn.Module | None = None,
    alpha: float | None = None,
    noise: float | None = None,
    purification: Purification | None = None,
    name: str = "own",
    seed: int = 0,
) -> JointModel:
    """A joint model of any classifier from inputs in [0, 1] of `shape` to logits; its modes and weights stay.

    The features z are what reaches its last linear layer. Where that does not do, give the split: `encoder` f, and as
    `classifier` g, with logits g(f(x)). Label consistency needs neither features nor training.

    - `task`: "consistency" (images), "rotation" (square images), "reconstruction" (anything), or a task of your own.
    - `head`: from z to four logits (rotation) or to the input's shape (reconstruction). Otherwise one is made, drawn
      from `seed`: a linear layer, or two with values in [0, 1]; it has to be trained.
    - `alpha`, `noise`: the weight of the auxiliary loss in training and the noise it trains with; the paper's by
      default.
    - `purification`: gamma, T and radii. By default the paper's for CIFAR where there are three colours, else those for
      MNIST.
    """
    if not shape or any(side < 1 for side in shape):
        raise InputError(f"shape is {shape!r}, want that of one input without the batch, e.g. shape=(3, 32, 32).")
    network = _network(classifier, encoder, tuple(shape), whole=task == "consistency" or isinstance(task, Consistency))
    like = _probe(classifier, network.inputs)
    made = task if isinstance(task, AuxiliaryTask) else None
    if made is None:
        made = _task(str(task), network, head=head, alpha=alpha, noise=noise, seed=seed)
    elif any(given is not None for given in (head, alpha, noise)):
        raise InputError("a task of your own has its head, alpha and noise in it; leave out head, alpha and noise.")
    colour = len(shape) == 3 and shape[0] == 3
    settings = purification or (COLOUR if colour else OTHER)
    model = JointModel(network, made.to(like.device, like.dtype), purification=settings, name=name)
    model.register_state_dict_post_hook(_apart)  # type: ignore[no-untyped-call]
    model.training = classifier.training  # alone: the parts keep theirs
    made.train(classifier.training)
    _check_task(model, like)
    return model


def _apart(model: nn.Module, weights: dict[str, Any], prefix: str, metadata: object) -> None:
    """Copies of tensors that two names share (tied weights, a part reached by two ways): files keep each name's own."""
    seen: set[int] = set()
    for name, value in weights.items():
        if isinstance(value, Tensor) and value.numel():
            if value.data_ptr() in seen:
                weights[name] = value.clone()
            seen.add(value.data_ptr())


def _network(classifier: nn.Module, encoder: nn.Module | None, shape: tuple[int, ...], *, whole: bool) -> Network:
    """f and g with their shapes. whole: no features are wanted, so that f may be everything."""
    x = _probe(classifier if encoder is None else encoder, shape)
    if encoder is None and whole:
        encoder, classifier = classifier, nn.Identity()
    elif encoder is None:
        layer = last_linear(classifier, x)
        encoder, classifier = FeaturesOf(classifier, layer), Layer(layer)
    with isolated(encoder), isolated(classifier), torch.no_grad():
        kept = x.clone()
        z = _called("encoder", encoder, x)
        if not torch.equal(x, kept):
            raise InputError("the network changes its input in place; write x = x - mean, say, instead of x -= mean.")
        logits = _called("classifier", classifier, z)
    validate.logits(logits, len(x))
    if not isinstance(z, Tensor) or z.ndim < 2 or len(z) != len(x):
        raise InputError(f"the encoder returned {validate.describe(z)}, want features of shape [{len(x)}, ...].")
    if logits.shape[1] < 2:
        raise InputError("the classifier returned one number a row, want a logit for each class: two for yes and no.")
    return Network(
        encoder=encoder, classifier=classifier, inputs=shape, features=tuple(z.shape[1:]), classes=logits.shape[1]
    )


def _task(
    name: str,
    network: Network,
    *,
    head: nn.Module | None,
    alpha: float | None,
    noise: float | None,
    seed: int,
) -> AuxiliaryTask:
    """The task called `name`, with a head for the network's features where none is given."""
    if name not in TASKS:
        raise unknown("auxiliary task", name, TASKS)
    shape = network.inputs
    options: dict[str, Any] = {key: value for key, value in (("alpha", alpha), ("noise", noise)) if value is not None}
    for key, value in options.items():
        validate.non_negative(key, value)
    if name != "reconstruction" and len(shape) != 3:
        raise InputError(
            f"the task {name!r} turns or crops images [channels, height, width], got inputs of shape {list(shape)}; "
            "use task='reconstruction', or a task of your own."
        )
    if name == "consistency":
        if head is not None:
            raise InputError("the task 'consistency' has no head, the classifier is it; leave out head.")
        return Consistency(**options)
    if name == "rotation" and shape[1] != shape[2]:
        raise InputError(f"the task 'rotation' turns square images, got {shape[1]} x {shape[2]}; cut or scale them.")
    with preserved_random_state():
        torch.manual_seed(seed)
        if name == "rotation":
            width = torch.Size(network.features).numel()
            return Rotation(head or nn.Sequential(nn.Flatten(), nn.Linear(width, TURNS)), **options)
        return Reconstruction(head or dense_decoder(network.features, shape), **options)


def _check_task(model: JointModel, x: Tensor) -> None:
    """One loss a row, or an error that says which part does not fit."""
    task = model.auxiliary
    with isolated(model), torch.no_grad():
        if isinstance(task, Rotation | Reconstruction):
            head, wanted = (task.head, (TURNS,)) if isinstance(task, Rotation) else (task.decoder, model.input_shape)
            made = _called("head", head, model.encoder(x))
            if not isinstance(made, Tensor) or tuple(made.shape) != (len(x), *wanted):
                raise InputError(f"the head returned {validate.describe(made)}, want shape {[len(x), *wanted]}.")
        loss = _called("task's loss", lambda x: task.loss(model, x), x)
    if not isinstance(loss, Tensor) or loss.shape != (len(x),):
        raise InputError(f"the task's loss returned {validate.describe(loss)}, want one number a row, [{len(x)}].")


def _called(what: str, function: Callable[[Tensor], object], x: Tensor) -> Any:
    """`function(x)`; an error inside it tells which part was called with what."""
    try:
        return function(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the {what} does not take a {validate.describe(x)}: {error}") from error


def _probe(network: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two inputs for a look at shapes, where the network's weights are and of their type."""
    parameter = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    drawn = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(parameter.device, parameter.dtype)
