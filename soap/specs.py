"""Specifications of attacks, purifiers and trainings as plain JSON values; result rows store them.

A specification is a name and the settings behind it. Two specifications are equal when they describe the same method.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any

UNDEFENDED = "none"
"""Name of the defence of a bare classifier."""

STATED_IF_CHANGED = ("bounds", "targeted")
"""Settings that a specification omits at their default: stored results of earlier versions do not have them."""

UNBOUNDED = "free"
"""Radius of a purifier without one: its output may lie anywhere in the input range."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A method. name: its class. settings: its arguments as JSON values."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class DefenceSpec(Spec):
    """A purifier before a classifier, or `BARE` for the classifier alone.

    eps: the radius, the rule that chooses it ("min-aux", "oracle"), "free" without a radius, None without a purifier.
    """

    eps: float | str | None = None

    @property
    def purifies(self) -> bool:
        """Whether a purifier stands before the classifier."""
        return self.name != UNDEFENDED


BARE = DefenceSpec(name=UNDEFENDED)
"""The classifier without a purifier."""


@dataclass(frozen=True, kw_only=True)
class AttackStep(Spec):
    """One attack of a sequence. rule: the gradient rule through which it sees the defence; None for the classifier.

    scale: the surrogate's, for the rule "unrolled" alone.
    """

    rule: str | None = None
    scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """What a result was measured under. name: the attack's short name, e.g. "pgd", or the protocol of a suite.

    steps: the attacks, in order. suite: the suite it belongs to; None outside of suites. against: the defence that the
    attack was aimed at, where the row measures a different one.
    """

    name: str
    steps: tuple[AttackStep, ...]
    suite: str | None = None
    against: DefenceSpec | None = None


@dataclass(frozen=True, kw_only=True)
class PriorTraining:
    """Training of the generative model behind a purifier."""

    name: str
    epochs: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Training of the weights. decay: of the learning rate, None for the recipe's own; dropout: where it differs from
    the recipe's; stored: precision of the file where it is not that of the training; prior: of the purifier."""

    epochs: int
    seed: int
    precision: str
    decay: str | None = None
    dropout: float | None = None
    stored: str | None = None
    prior: PriorTraining | None = None


def spec_of(method: object) -> Spec:
    """The specification of an attack or a purifier.

    It comes from the method's own `spec()`; otherwise from the fields of a dataclass, or from those public attributes
    that are plain values.
    """
    own = getattr(method, "spec", None)
    if callable(own):
        made: Spec = own()
        return made
    if is_dataclass(method):
        settings = {each.name: plain(getattr(method, each.name)) for each in fields(method) if _is_stated(method, each)}
    else:
        found = getattr(method, "__dict__", {})  # built-in functions have none
        public = (name for name in found if not name.startswith("_") and name != "training")  # a module's mode
        settings = {name: plain(found[name]) for name in public if _is_plain(found[name])}
    return Spec(name=getattr(method, "__name__", type(method).__name__), settings=settings)


def defence_spec(purifier: object | None) -> DefenceSpec:
    """The specification of a purifier before a classifier; `BARE` for None."""
    if purifier is None:
        return BARE
    made, eps = spec_of(purifier), getattr(purifier, "eps", UNBOUNDED)
    return DefenceSpec(name=made.name, settings=made.settings, eps=eps)


def attack_spec(name: str, attack: object, **task: Any) -> AttackSpec:
    """The specification of one attack on the bare classifier, under a short name.

    task: settings of the auxiliary task, for an attack that differentiates its loss.
    """
    made = spec_of(attack)
    settings = {**made.settings, "task": task} if task else made.settings
    return AttackSpec(name=name, steps=(AttackStep(name=made.name, settings=settings),))


def plain(value: Any) -> Any:
    """The value as JSON has it: tuples as lists, methods as their name and settings, anything else as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        made = spec_of(value)
        return {"name": made.name, "settings": dict(made.settings)}
    return function_name(value) if is_function(value) else str(value)


def is_function(value: object) -> bool:
    """Whether a setting is a function, or a callable object without a text of its own: both are stored by name."""
    named = isinstance(value, partial) or hasattr(value, "__name__")
    return callable(value) and (named or type(value).__repr__ is object.__repr__)


def function_name(function: Callable[..., Any]) -> str:
    """The name by which results refer to a function; that of its class for a callable object."""
    if isinstance(function, partial):
        return function_name(function.func)
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def call_text(method: Spec) -> str:
    """The call that makes a method, as Python writes it: "PGD(eps=0.3, steps=40)"."""
    return _call(method.name, method.settings)


def _call(name: str, settings: Mapping[str, Any]) -> str:
    """Settings of the auxiliary task stand among the others; a generator is named without its key."""
    parts: list[str] = []
    for key, value in settings.items():
        if key == "task":
            parts += [f"{inner}={_value(of)}" for inner, of in value.items()]
        else:
            parts.append(str(value) if key == "generator" else f"{key}={_value(value)}")
    return f"{name}({', '.join(parts)})"


def _value(value: Any) -> str:
    if isinstance(value, Mapping) and value.keys() == {"name", "settings"}:
        return _call(value["name"], value["settings"])
    return repr(tuple(value)) if isinstance(value, list) else repr(value)


def _is_stated(method: object, each: Field[Any]) -> bool:
    return each.repr and not (each.name in STATED_IF_CHANGED and getattr(method, each.name) == each.default)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
