"""`wrap`: turn any classifier into a joint model.

Its features z, the input of its last linear layer, are found by probing, and the task's head fits them. Nothing is
copied. The joint model holds the given module itself, so training one trains the other.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from soap import validate
from soap._runtime.isolation import isolated, preserved_random_state
from soap.auxiliary.consistency import Consistency
from soap.auxiliary.joint import AuxiliaryTask, JointModel, Purification
from soap.auxiliary.reconstruction import Reconstruction
from soap.auxiliary.rotation import TURNS, Rotation
from soap.errors import InputError, unknown
from soap.models import LogitsAdapter, Network, dense_decoder
from soap.shapes import Float, Tensor

TASKS: dict[str, type[AuxiliaryTask]] = {
    "consistency": Consistency, "reconstruction": Reconstruction, "rotation": Rotation,
}  # fmt: skip

CIFAR_PURIFICATION = Purification(step_size=4 / 255, steps=5, grid=tuple(k * 4 / 255 for k in range(11)))
MNIST_PURIFICATION = Purification(step_size=0.1, steps=5, grid=tuple(k / 10 for k in range(11)))
"""The paper's purifier settings, used as defaults; `soap.evaluation.tuning` finds better ones for a model."""

SPLIT_HINT = "pass the split yourself: encoder=f up to the features, and as classifier g, with logits g(f(x))"


def wrap(
    classifier: nn.Module,
    task: str | AuxiliaryTask = "consistency",
    *,
    shape: tuple[int, ...],
    encoder: nn.Module | None = None,
    head: nn.Module | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    alpha: float | None = None,
    noise: float | None = None,
    purification: Purification | None = None,
    name: str = "own",
    seed: int = 0,
) -> JointModel:
    """Return a `JointModel` of a classifier that maps inputs in [0, 1] of `shape` to logits.

    The classifier's weights and modes are unchanged. The features z are the input of its last linear layer. If the
    network has no such layer, pass the split: `encoder` f, and as `classifier` g, with logits g(f(x)). Label
    consistency needs neither features nor training. The network may return a tensor, an object with `.logits`, a dict
    with "logits", or a tuple whose first element is the logits.

    - `task`: "consistency" (images), "rotation" (square images), "reconstruction" (any input), or your own
      `AuxiliaryTask`.
    - `head`: module from z to four logits (rotation) or to the input's shape (reconstruction). The default, drawn from
      `seed`, is a linear layer (rotation) or a two-layer decoder (reconstruction); it must be trained.
    - `mean`, `std`: for a network whose inputs are normalised: the network gets (x - mean) / std. One number, or one
      for each channel.
    - `alpha`, `noise`: weight of the auxiliary loss in training, and its noise; the paper's values by default.
    - `purification`: gamma, T and radii; by default the paper's for CIFAR if there are three channels, else for MNIST.
    """
    if not shape or any(side < 1 for side in shape):
        raise InputError(
            f"shape is {shape!r}; expected the shape of one input without the batch, e.g. shape=(3, 32, 32)."
        )
    normalisation = {key: value for key, value in (("mean", mean), ("std", std)) if value is not None}
    whole = task == "consistency" or isinstance(task, Consistency)
    network = _network(classifier, encoder, tuple(shape), normalisation, whole=whole)
    like = _probe(classifier, network.inputs)
    made = task if isinstance(task, AuxiliaryTask) else None
    if made is None:
        made = _task(str(task), network, head=head, alpha=alpha, noise=noise, seed=seed)
    elif any(given is not None for given in (head, alpha, noise)):
        raise InputError("your own task has its own head, alpha and noise; leave out head, alpha and noise.")
    colour = len(shape) == 3 and shape[0] == 3
    settings = purification or (CIFAR_PURIFICATION if colour else MNIST_PURIFICATION)
    model = JointModel(network, made.to(like.device, like.dtype), purification=settings, name=name)
    model.normalisation = normalisation
    model.register_state_dict_post_hook(_copy_shared_tensors)  # type: ignore[no-untyped-call]
    model.training = classifier.training  # this flag only: the submodules keep their modes
    made.train(classifier.training)
    _check_task(model, like)
    return model


def _copy_shared_tensors(model: nn.Module, weights: dict[str, Any], prefix: str, metadata: object) -> None:
    """Copy tensors that appear under two names (tied weights), because safetensors files cannot share tensors."""
    seen: set[int] = set()
    for name, value in weights.items():
        if isinstance(value, Tensor) and value.numel():
            if value.data_ptr() in seen:
                weights[name] = value.clone()
            seen.add(value.data_ptr())


def _network(
    classifier: nn.Module,
    encoder: nn.Module | None,
    shape: tuple[int, ...],
    normalisation: dict[str, Any],
    *,
    whole: bool,
) -> Network:
    """Return f, g and their shapes. whole: the task needs no features, so f is the whole classifier."""
    x = _probe(classifier if encoder is None else encoder, shape)
    if encoder is not None and normalisation:
        encoder = LogitsAdapter(encoder, **normalisation)
    elif encoder is None:
        classifier = _adapted(classifier, x.clone(), normalisation)
    if encoder is None and whole:
        encoder, classifier = classifier, nn.Identity()
    elif encoder is None:
        layer = last_linear(classifier, x)
        encoder, classifier = LayerInput(classifier, layer), SharedLayer(layer)
    with isolated(encoder), isolated(classifier), torch.no_grad():
        kept = x.clone()
        z = _call_part("encoder", encoder, x)
        if not torch.equal(x, kept):
            raise InputError(
                "the network modifies its input in place; write x = x - mean instead of x -= mean, for example."
            )
        classifier = _adapted(classifier, z)
        logits = _call_part("classifier", classifier, z)
    validate.logits(logits, len(x))
    if not isinstance(z, Tensor) or z.ndim < 2 or len(z) != len(x):
        raise InputError(f"the encoder returned {validate.describe(z)}; expected features of shape [{len(x)}, ...].")
    if logits.shape[1] < 2:
        raise InputError(
            "the classifier returned one logit per sample; expected one per class, e.g. two for binary classification."
        )
    return Network(
        encoder=encoder, classifier=classifier, inputs=shape, features=tuple(z.shape[1:]), classes=logits.shape[1]
    )


def _adapted(network: nn.Module, x: Tensor, normalisation: dict[str, Any] | None = None) -> nn.Module:
    """Return the network, behind an adapter if its inputs are normalised or it returns no tensor."""
    if not normalisation:
        with isolated(network), torch.no_grad():
            if isinstance(_call_part("classifier", network, x), Tensor):
                return network
    return LogitsAdapter(network, **(normalisation or {}))


def _task(
    name: str,
    network: Network,
    *,
    head: nn.Module | None,
    alpha: float | None,
    noise: float | None,
    seed: int,
) -> AuxiliaryTask:
    """Return the task called `name`; without a `head`, one is made to fit the network's features."""
    if name not in TASKS:
        raise unknown("auxiliary task", name, TASKS)
    shape = network.inputs
    options: dict[str, Any] = {key: value for key, value in (("alpha", alpha), ("noise", noise)) if value is not None}
    for key, value in options.items():
        validate.non_negative(key, value)
    if name != "reconstruction" and len(shape) != 3:
        raise InputError(
            f"the task {name!r} turns or crops images [channels, height, width], got inputs of shape {list(shape)}; "
            "use task='reconstruction' or your own task."
        )
    if name == "consistency":
        if head is not None:
            raise InputError("the task 'consistency' uses the classifier as its head; leave out head.")
        return Consistency(**options)
    if name == "rotation" and shape[1] != shape[2]:
        raise InputError(f"the task 'rotation' needs square images, got {shape[1]} x {shape[2]}; crop or resize them.")
    with preserved_random_state():
        torch.manual_seed(seed)
        if name == "rotation":
            width = torch.Size(network.features).numel()
            return Rotation(head or nn.Sequential(nn.Flatten(), nn.Linear(width, TURNS)), **options)
        return Reconstruction(head or dense_decoder(network.features, shape), **options)


def _check_task(model: JointModel, x: Tensor) -> None:
    """Raise `InputError` unless the task returns one loss per sample; the error names the part that does not fit."""
    task = model.auxiliary
    with isolated(model), torch.no_grad():
        if isinstance(task, Rotation | Reconstruction):
            head, wanted = (task.head, (TURNS,)) if isinstance(task, Rotation) else (task.decoder, model.input_shape)
            made = _call_part("head", head, model.encoder(x))
            if not isinstance(made, Tensor) or tuple(made.shape) != (len(x), *wanted):
                raise InputError(f"the head returned {validate.describe(made)}; expected shape {[len(x), *wanted]}.")
        loss = _call_part("task's loss", lambda x: task.loss(model, x), x)
    if not isinstance(loss, Tensor) or loss.shape != (len(x),):
        raise InputError(
            f"the task's loss returned {validate.describe(loss)}; expected one loss per sample, [{len(x)}]."
        )


def _call_part(what: str, function: Callable[[Tensor], object], x: Tensor) -> Any:
    """Return `function(x)`; an error inside it becomes an `InputError` that names the part and its input."""
    try:
        return function(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the {what} fails on a {validate.describe(x)}: {error}") from error


def _probe(network: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return two random inputs on the device and in the dtype of the network's weights."""
    parameter = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    drawn = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(parameter.device, parameter.dtype)


class LayerInput(nn.Module):
    """Encoder z = f(x): runs `network` and returns the input of its submodule `layer`."""

    def __init__(self, network: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._layer = (layer,)  # in a tuple, so that the weights are registered and saved only with the network

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *features"]:
        """Return the layer's input; the hook exists only during the call and only sees this thread."""
        seen: list[Tensor] = []
        here = threading.get_ident()

        def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if threading.get_ident() == here:
                seen.append(arguments[0])

        hook = self._layer[0].register_forward_pre_hook(record)
        try:
            self.network(x)
        finally:
            hook.remove()
        if len(seen) != 1:
            mode = "training" if self.training else "evaluation"
            raise InputError(
                f"the last linear layer was called {len(seen)} times in {mode} mode, expected once; {SPLIT_HINT}."
            )
        return seen[0]


class SharedLayer(nn.Module):
    """Classifier g(z): a layer whose weights are registered with another module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = (layer,)

    def forward(self, z: Float[Tensor, "batch *features"]) -> Float[Tensor, "batch classes"]:
        """Return the layer's output, the logits."""
        logits: Tensor = self._layer[0](z)
        return logits


def last_linear(network: nn.Module, x: Float[Tensor, "batch *shape"]) -> nn.Linear:
    """Return the linear layer whose output is the network's logits; raise `InputError` if there is none.

    The network is run on `x` in evaluation mode: the order of calls decides, not the order of definition.
    """
    calls: list[tuple[str, nn.Linear, Tensor]] = []  # name, layer, output of each call
    linear = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)]

    def recorder(name: str, layer: nn.Linear) -> Any:
        return lambda module, arguments, output: calls.append((name, layer, output.detach()))

    hooks = [layer.register_forward_hook(recorder(name, layer)) for name, layer in linear]
    try:
        with isolated(network), torch.no_grad():
            try:
                logits = network(x)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise InputError(f"the classifier fails on a {validate.describe(x)}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    validate.logits(logits, len(x))
    kind = type(network).__name__
    if not calls:
        raise InputError(f"{kind} calls no linear layer (nn.Linear) to compute its logits; {SPLIT_HINT}.")
    name, layer, alone = calls[-1]
    times = sum(one is layer for _, one, _ in calls)
    if times > 1:
        raise InputError(
            f"{kind} calls its last linear layer {name!r} {times} times in one pass, expected once; {SPLIT_HINT}."
        )
    # Equal values do not suffice: a later operation may be an identity for now, e.g. a temperature of 1.
    if alone.shape != logits.shape or alone.data_ptr() != logits.data_ptr():
        raise InputError(f"the logits of {kind} are not the output of its last linear layer {name!r}; {SPLIT_HINT}.")
    return layer
