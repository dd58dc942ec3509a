"""Expectation over transformation (EOT, Athalye et al. 2018): attack a random defence by the mean over its draws.

A random purifier draws from a global generator of torch, numpy or Python, or from one that it keeps. `seeded_draws`
sets all of them from a seed, so that draws can be repeated or varied, and restores their states on leaving.
"""

import inspect
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from soap import validate
from soap._runtime.isolation import frozen, preserved_random_state
from soap._runtime.seeding import seed_for
from soap.gradient_rules.rule import Criterion, logits_and_gradient
from soap.shapes import Float, Tensor

MAX_SEARCH_DEPTH = 4
"""Attributes of attributes that are searched for generators of a model's own."""

OwnGenerator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


class MeanOverDraws(nn.Module):
    """A random model whose logits and gradients are means over `draws` evaluations.

    Logits are the logarithm of the mean of the softmax over the draws. Their largest class is the most probable one
    over the draws, and a draw with large logits cannot dominate the mean, as it would in a mean of logits.
    `logits_and_gradient` averages the gradient of the criterion over the draws, each by the model's own gradient rule
    if it has one. Autograd differentiates the logits instead.

    Every call uses new draws: call number c, counted from the construction or the last `restart`, seeds draw k by
    (seed, c, k). The same calls after construction thus give the same results. The seed sets the global generators of
    torch, numpy and Python, and the generators that the model keeps after its first call; their states are restored
    after each draw.

    Cost per call: `draws` calls of the model, and as many again in the backward pass of autograd. Only one draw is in
    memory at a time.
    """

    def __init__(self, model: nn.Module, draws: int, seed: int = 0) -> None:
        super().__init__()
        validate.at_least("draws", draws, 1)
        validate.at_least("seed", seed, 0)
        self.model, self.draws, self.seed = model, draws, seed
        self._calls = 0
        self._generators: list[OwnGenerator] = []

    def extra_repr(self) -> str:
        """Return the number of draws and the seed."""
        return f"draws={self.draws}, seed={self.seed}"

    def restart(self) -> None:
        """Begin again with the first draws, as after construction."""
        self._calls = 0

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logarithm of the mean softmax over new draws."""
        draw = partial(self._draw, generators=self._own_generators())
        if torch.is_grad_enabled() and x.requires_grad:
            return _log_mean([checkpoint(draw, x, seed, use_reentrant=False) for seed in self._next_seeds()])
        return _log_mean([draw(x, seed) for seed in self._next_seeds()])

    def logits_and_gradient(
        self, x: Float[Tensor, "batch *shape"], criterion: Criterion
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the logits of `forward` and the gradient of `criterion`, averaged over the same new draws."""
        logits, total = [], torch.zeros_like(x)
        generators = self._own_generators()
        with frozen(self.model):
            for seed in self._next_seeds():
                with seeded_draws(seed, generators):
                    drawn, gradient = logits_and_gradient(self.model, x, criterion)
                logits.append(drawn.log_softmax(1))
                total = total + gradient
        return _log_mean(logits), total / self.draws

    def _draw(self, x: Tensor, seed: int, generators: list[OwnGenerator]) -> Tensor:
        with frozen(self.model), seeded_draws(seed, generators):  # autograd calls it again in the backward pass
            logits: Tensor = self.model(x)
        return logits.log_softmax(1)

    def _own_generators(self) -> list[OwnGenerator]:
        """Return the generators that the model keeps; a model may create one in its first call, but not later."""
        if self._calls < 2:
            self._generators = own_generators(self.model)
        return self._generators

    def _next_seeds(self) -> list[int]:
        call, self._calls = self._calls, self._calls + 1
        return [seed_for(self.seed, call, draw) for draw in range(self.draws)]


def _log_mean(logarithms: list[Tensor]) -> Tensor:
    """Return the logarithm of the mean of numbers, given their logarithms."""
    stacked = torch.stack(logarithms)
    return stacked.logsumexp(0) - math.log(len(logarithms))


@contextmanager
def seeded_draws(seed: int, generators: list[OwnGenerator] | None = None) -> Iterator[None]:
    """Seed the global generators and `generators`; restore all states on leaving. seed: at least 0, below 2^63."""
    with ExitStack() as stack:
        stack.enter_context(preserved_random_state())
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also queue a seed for an unused GPU
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        stack.callback(np.random.set_state, np.random.get_state())
        np.random.seed(seed % 2**32)
        for generator in (random._inst, *(generators or [])):
            stack.callback(_reseed(generator, seed))
        yield


def own_generators(*models: object) -> list[OwnGenerator]:
    """Return the random generators that the models keep: in attributes, submodules, closures and bound arguments."""
    found: dict[int, OwnGenerator] = {}
    seen: set[int] = set()
    level: list[object] = list(models)
    for _ in range(MAX_SEARCH_DEPTH):
        level = list({id(thing): thing for thing in level if id(thing) not in seen}.values())
        seen.update(map(id, level))
        inner = [part for thing in level for part in _parts(thing) if not _is_leaf(part)]
        found |= {id(part): part for part in inner if isinstance(part, OwnGenerator)}
        level = inner
    return [generator for generator in found.values() if generator is not random._inst]


_LEAVES = frozenset({Tensor, nn.Parameter, np.ndarray, str, bytes, int, float, bool, type(None), torch.dtype})


def _is_leaf(thing: Any) -> bool:
    """Whether `thing` holds nothing, told by its type alone: most attributes of a module are numbers or empty."""
    kind = type(thing)
    return kind in _LEAVES or (kind in (dict, OrderedDict) and not thing)


def _parts(thing: object) -> list[object]:
    """Return the objects that `thing` holds and that may hold a generator."""
    if isinstance(thing, OwnGenerator | Tensor | ModuleType | type | str | bytes | int | float | np.ndarray):
        return []
    if isinstance(thing, list | tuple):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, FunctionType):
        used = inspect.getclosurevars(thing)
        return [*used.nonlocals.values(), *used.globals.values(), *(thing.__defaults__ or ())]
    if isinstance(thing, nn.Module):
        return [part for module in thing.modules() for part in vars(module).values()]
    return list(vars(thing).values()) if hasattr(thing, "__dict__") else []


def _reseed(generator: OwnGenerator, seed: int) -> Callable[[], Any]:
    """Seed the generator and return the function that restores its state."""
    if isinstance(generator, torch.Generator):
        restore: Callable[[], Any] = partial(generator.set_state, generator.get_state())
        generator.manual_seed(seed)
        return restore
    if isinstance(generator, random.Random):
        restore = partial(generator.setstate, generator.getstate())
        generator.seed(seed)
        return restore
    if isinstance(generator, np.random.RandomState):
        restore = partial(generator.set_state, generator.get_state())
        generator.seed(seed % 2**32)
        return restore
    bits, before = generator.bit_generator, generator.bit_generator.state
    bits.state = type(bits)(seed).state
    return partial(setattr, bits, "state", before)
