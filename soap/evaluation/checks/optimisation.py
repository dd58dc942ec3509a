"""Check 4: a defence that optimises at inference was attacked by a protocol that goes through the optimisation."""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from soap._runtime.isolation import isolated
from soap.evaluation.checks.check import PASS, WARN, Check, Evidence, Judgement, Measurement
from soap.evaluation.checks.context import MeasurementContext
from soap.evaluation.protocols import THROUGH_PURIFIER

IMAGES = 16


@dataclass(frozen=True, kw_only=True)
class InferenceOptimisation:
    """Signs of optimisation in one call: a purifier, backward passes, optimiser steps, weights that changed."""

    purifier: bool
    gradients: int
    optimiser_steps: int
    weights_changed: int

    @property
    def found(self) -> bool:
        """Whether the defence optimises or purifies."""
        return bool(self.purifier or self.gradients or self.optimiser_steps or self.weights_changed)


def measure(context: MeasurementContext) -> InferenceOptimisation:
    """Count backward passes, optimiser steps and changed weights in one call."""
    x, _ = context.few(IMAGES)
    defence = context.defence
    before = copy.deepcopy(defence.state_dict())
    with eager(defence), isolated(defence), optimisation_counted() as seen, torch.no_grad():
        defence(x)
    after = defence.state_dict()
    return InferenceOptimisation(
        purifier=defence.purifies,
        gradients=seen["gradients"],
        optimiser_steps=seen["steps"],
        weights_changed=sum(not torch.equal(value, after[name]) for name, value in before.items()),
    )


@contextmanager
def optimisation_counted() -> Iterator[Counter[str]]:
    """Count all backward passes ("gradients") and optimiser steps ("steps") inside.

    Every backward pass of autograd goes through one function of torch.autograd, which is replaced.
    """
    seen: Counter[str] = Counter()
    engine_run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def counted(*arguments: Any, **options: Any) -> Any:
        seen["gradients"] += 1
        return engine_run(*arguments, **options)

    hook = register_optimizer_step_pre_hook(lambda *arguments: seen.update(["steps"]))
    torch.autograd._engine_run_backward = counted  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        torch.autograd._engine_run_backward = engine_run  # type: ignore[attr-defined]
        hook.remove()


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Disable CUDA graphs inside: hooks do not see what a replayed graph does."""
    with ExitStack() as leave:
        for module in model.modules():
            if getattr(module, "recordable", False) is True:
                setattr(module, "recordable", False)  # noqa: B010  (mypy knows modules by their tensors)
                leave.callback(setattr, module, "recordable", True)
        yield


MEASUREMENT = Measurement("optimisation", InferenceOptimisation, measure)


def judge(evidence: Evidence) -> Judgement:
    """WARN where the defence optimises and no protocol went through it."""
    found = evidence.record(MEASUREMENT)
    measured = (
        f"{found.gradients} gradients, {found.optimiser_steps} optimiser steps, "
        f"{found.weights_changed} weights changed in one call"
    )
    if not found.found:
        return PASS, measured, "The defence does not optimise at inference; no adaptive protocol is needed."
    done = [name for name in THROUGH_PURIFIER if name in evidence.summary.done]
    measured = f"{'a purifier; ' if found.purifier else ''}{measured}"
    if done:
        return PASS, measured, f"The defence optimises at inference; {', '.join(done)} attacked through it."
    first = "" if found.purifier else "give classifier and purifier to soap.Defence, and "
    meaning = (
        f"The defence optimises at inference, and no attack went through it: {first}run straight-through at least."
    )
    return WARN, measured, meaning


CHECKS = (Check(4, "optimisation at inference", judge, (MEASUREMENT,)),)
