"""What a defence does when it answers: whether it optimises (check 4), and what it costs (check 15)."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from soap._runtime.isolation import isolated
from soap.evaluation.adaptive.probes.subject import Subject
from soap.shapes import Tensor

IMAGES = 16
REPEATS = 3


def optimisation(subject: Subject) -> dict[str, Any]:
    """Signs of optimisation inside a call: gradients taken, optimiser steps, weights that changed."""
    x, _ = subject.few(IMAGES)
    defended = subject.target.defended
    before = copy.deepcopy(defended.state_dict())
    with eager(defended), isolated(defended), watched() as seen, torch.no_grad():
        defended(x)
    after = defended.state_dict()
    changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
    return {
        "purifier": subject.target.purifies,
        "gradients": seen.gradients,
        "optimiser_steps": seen.steps,
        "weights_changed": len(changed),
    }


def cost(subject: Subject) -> dict[str, Any]:
    """Rows through the classifier's first layer, forward and back, and seconds: of the defence and the classifier."""
    x, _ = subject.few(IMAGES)
    target = subject.target
    alone = target.bare if target.bare is not None else target.defended
    with eager(target.defended), eager(alone), isolated(target.defended), torch.no_grad():
        layer = first_layer(alone, x)
        whole, bare = passes(layer, target.defended, x), passes(layer, alone, x)
    with isolated(target.defended), torch.no_grad():
        times = [_seconds(target.defended, x), _seconds(alone, x)]
    return {
        "defended": {"forward": whole.forward, "backward": whole.backward, "seconds": times[0]},
        "bare": {"forward": bare.forward, "backward": bare.backward, "seconds": times[1]},
        "images": len(x),
        "separable": target.bare is not None,
    }


@dataclass
class Seen:
    """What happened inside: how often autograd went back, and optimisers stepped."""

    gradients: int = 0
    steps: int = 0


@contextmanager
def watched() -> Iterator[Seen]:
    """Count backward passes and optimiser steps inside, whoever asks for them.

    Every way into autograd's backward pass leads through one function of torch.autograd, which is replaced.
    """
    seen = Seen()
    engine_run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def counted(*arguments: Any, **options: Any) -> Any:
        seen.gradients += 1
        return engine_run(*arguments, **options)

    def stepped(optimiser: Optimizer, arguments: Any, options: Any) -> None:
        seen.steps += 1

    hook = register_optimizer_step_pre_hook(stepped)
    torch.autograd._engine_run_backward = counted  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        torch.autograd._engine_run_backward = engine_run  # type: ignore[attr-defined]
        hook.remove()


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """No replay of recordings inside: hooks do not see what a recording does."""
    with ExitStack() as leave:
        for module in model.modules():
            if getattr(module, "recordable", False) is True:
                setattr(module, "recordable", False)  # noqa: B010  (mypy knows modules by their tensors)
                leave.callback(setattr, module, "recordable", True)
        yield


@dataclass
class Passes:
    """Rows that went through a layer for each image."""

    forward: float
    backward: float


def first_layer(model: nn.Module, x: Tensor) -> nn.Module | None:
    """The first module with weights of its own that `x` meets; None where there is none."""
    met: list[nn.Module] = []
    with ExitStack() as leave:
        for module in model.modules():
            if module._parameters and any(weight is not None for weight in module._parameters.values()):
                hook = module.register_forward_pre_hook(lambda module, inputs: met.append(module))
                leave.callback(hook.remove)
        model(x[:1])
    return met[0] if met else None


def passes(layer: nn.Module | None, model: Callable[[Tensor], Tensor], x: Tensor) -> Passes:
    """What one call of `model` on `x` sends through `layer`."""
    if layer is None:
        return Passes(forward=0.0, backward=0.0)
    counted = Passes(forward=0.0, backward=0.0)

    def back(gradient: Tensor) -> None:
        counted.backward += len(gradient) / len(x)

    def forth(module: nn.Module, inputs: Any, output: Any) -> None:
        counted.forward += len(output) / len(x)
        if output.requires_grad:
            output.register_hook(back)

    hook = layer.register_forward_hook(forth)
    try:
        model(x)
    finally:
        hook.remove()
    return counted


def _seconds(model: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The shortest of a few calls, for each image."""
    model(x)
    times = []
    for _ in range(REPEATS):
        began = time.monotonic()
        model(x).argmax(1).tolist()  # waits for the device
        times.append(time.monotonic() - began)
    return max(min(times), 1e-9) / len(x)
