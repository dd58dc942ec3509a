"""Attacks and purifiers for tables: results that respect immutable features, categories, integers and ranges.

An attack sees the model without gradient in immutable features and with the others clipped to their ranges. Its result
is projected to a valid row. The projection moves no feature further from the given row, so the result stays in every
Linf, L2 or L1 ball that the attack kept. A category or an integer changes only where the ball contains the whole
change: a category in an L2 ball of radius 1.5, never in an Linf ball below 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from soap.attacks import Attack, Model
from soap.descent import output_and_gradient
from soap.errors import InputError
from soap.gradient_rules.rule import Criterion, logits_and_gradient
from soap.purifiers import Purified
from soap.purifiers.purifier import Purifier, Specified, prior_of
from soap.shapes import Float, Tensor
from soap.specs import UNBOUNDED, plain

TOLERANCE = 1e-4
"""Of a step between two integers: what rounding may add or lack."""


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Which changes of a row [features] are valid; `feasible` and `project` compare rows with the rows they came from.

    immutable: features that keep their value. one_hot: groups of features of which one is 1 and the others are 0.
    integer: by feature, the step between two values (1, or 1 / range for scaled data). lower, upper: by feature.
    """

    immutable: tuple[int, ...] = ()
    one_hot: tuple[tuple[int, ...], ...] = ()
    integer: Mapping[int, float] = field(default_factory=dict, hash=False)
    lower: Mapping[int, float] = field(default_factory=dict, hash=False)
    upper: Mapping[int, float] = field(default_factory=dict, hash=False)

    def feasible(self, changed: Float[Tensor, "n features"], x: Float[Tensor, "n features"]) -> Tensor:
        """Return which changed rows are valid (boolean, [n])."""
        low, high, step = self._limits(x)
        ok = (changed >= low) & (changed <= high)
        steps = (changed - x) / step
        ok &= (step == 0) | ((steps - steps.round()).abs() <= 10 * TOLERANCE)
        for one in self.immutable:
            ok[:, one] &= changed[:, one] == x[:, one]
        for group in map(list, self.one_hot):
            ok[:, group] &= _is_one_hot(changed[:, group])[:, None]
        return ok.all(1)

    def project(self, changed: Float[Tensor, "n features"], x: Float[Tensor, "n features"]) -> Tensor:
        """Return valid rows near the changed ones; no feature is further from `x` than in `changed`."""
        if not bool((valid := self.feasible(x, x)).all()):
            row = int((~valid).nonzero()[0])
            raise InputError(
                f"row {row} breaks the constraints before any change; correct the data or the constraints."
            )
        low, high, step = self._limits(x)
        made = changed.clamp(low, high)
        steps = (made - x) / step
        whole = (steps + TOLERANCE * steps.sign()).trunc()
        made = torch.where(step == 0, made, torch.where(whole == 0, x, x + whole * step).clamp(low, high))
        for one in self.immutable:
            made[:, one] = x[:, one]
        for group in map(list, self.one_hot):
            move = (made[:, group] - x[:, group]).clamp(-1, 1)
            chosen = x[:, group] + (move + TOLERANCE * move.sign()).trunc()
            made[:, group] = torch.where(_is_one_hot(chosen)[:, None], chosen, x[:, group])
        kept = self.feasible(made, x)[:, None]  # groups that overlap with other constraints may still break one
        return torch.where(kept, made, x)

    def relaxed(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n features"]:
        """Return the rows clipped to their ranges, without gradient in immutable features."""
        low, high, _ = self._limits(x)
        fixed = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        fixed[list(self.immutable)] = True
        return torch.where(fixed, x.detach(), x).clamp(low, high)

    def _limits(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return lower and upper limits and integer steps (0: none), each [features]."""
        used = {*self.immutable, *sum(self.one_hot, ()), *self.integer, *self.lower, *self.upper}
        if x.ndim != 2 or not used <= {*range(x.shape[1])}:
            raise InputError(f"got inputs {list(x.shape)}, expected rows [n, features] with features {sorted(used)}.")
        made = []
        for default, stated in ((-torch.inf, self.lower), (torch.inf, self.upper), (0.0, self.integer)):
            made.append(x.new_full((x.shape[1],), default))
            for feature, value in stated.items():
                made[-1][feature] = value
        return made[0], made[1], made[2]


def _is_one_hot(rows: Tensor) -> Tensor:
    return ((rows == 0) | (rows == 1)).all(1) & (rows.sum(1) == 1)


class _RelaxedModel(nn.Module):
    """A model that sees `Constraints.relaxed` rows, by its own gradient rule if it has one."""

    def __init__(self, model: Model, constraints: Constraints) -> None:
        super().__init__()
        self.model, self.constraints = model, constraints

    def forward(self, x: Float[Tensor, "n features"]) -> Tensor:
        logits: Tensor = self.model(self.constraints.relaxed(x))
        return logits

    def logits_and_gradient(self, x: Float[Tensor, "n features"], criterion: Criterion) -> tuple[Tensor, Tensor]:
        logits, gradient = logits_and_gradient(self.model, self.constraints.relaxed(x).detach(), criterion)
        return logits, output_and_gradient(self.constraints.relaxed, x, lambda _: gradient)[1]


@dataclass(frozen=True, kw_only=True, repr=False)
class ConstrainedAttack(Attack):
    """An attack whose results are valid rows of a table."""

    attack: Attack
    constraints: Constraints

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", self.attack.bounds)
        object.__setattr__(self, "targeted", self.attack.targeted)

    def perturb(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Attack the relaxed model, then project."""
        return self.constraints.project(self.attack.perturb(_RelaxedModel(model, self.constraints), x, y), x)


class ConstrainedPurifier(Specified):
    """A purifier whose results are valid rows of a table.

    A row whose loss the projection raises above that of the input is returned unchanged. loss_after is NaN for changed
    rows of a purifier without the method `loss`.
    """

    gradient = "straight-through"

    def __init__(self, purifier: Purifier, constraints: Constraints) -> None:
        self.purifier, self.constraints = purifier, constraints
        self.eps = getattr(purifier, "eps", UNBOUNDED)
        self.random = getattr(purifier, "random", False)  # type: ignore[misc]  # that of the purifier
        self.prior = prior_of(purifier)

    def settings(self) -> dict[str, Any]:
        """Return both as text and as JSON values."""
        return {"purifier": repr(self.purifier), "constraints": plain(self.constraints)}

    def __call__(self, x: Float[Tensor, "n features"]) -> Purified:
        """Return the purified rows."""
        found = self.purifier(x)
        made = self.constraints.project(found.x.detach(), x)
        changed = (made != found.x).any(1)
        loss = getattr(self.purifier, "loss", None)
        after = torch.full_like(found.loss_after, torch.nan)
        if callable(loss) and changed.any():
            with torch.no_grad():
                after = loss(made)
        worse = changed & (after > found.loss_before)
        after = torch.where(worse, found.loss_before, torch.where(changed, after, found.loss_after))
        return replace(found, x=torch.where(worse[:, None], x, made), loss_after=after)
