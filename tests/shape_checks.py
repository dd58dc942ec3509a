"""The run-time type checker of the tests: beartype, inside the scope in which jaxtyping compares axis names.

jaxtyping's own decorator binds the arguments to the signature and checks them twice: about 40 us a call. The tests call
small functions of soap so often that this is a third of the time of many of them. Here a call costs about 4 us, and
less where no annotation has a shape: such a function needs no scope.

A function inside a function is decorated in every call of the outer one, and beartype compiles its checks each time,
which takes as long as a forward pass. Here they are compiled once.
"""

import dataclasses
import inspect
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

# beartype accepts an int for a float parameter (PEP 484), and raises jaxtyping's error.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_jaxtyped = jaxtyping.jaxtyped
_scope = _jaxtyped("context")  # without a state of its own: nested calls share it
_inner_checks: dict[Any, Callable[..., Any]] = {}
_running = threading.local()


def with_checks(fn: Any, typechecker: Callable[[Any], Any]) -> Any:
    """Return `fn` with its arguments and its result checked; a class with the checks of its dataclass fields."""
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and inspect.isfunction(vars(fn).get("__init__")):
            fn.__init__ = with_checks(fn.__init__, typechecker)
        return fn
    if not inspect.isfunction(fn) or any(isinstance(one, str) for one in fn.__annotations__.values()):
        return _jaxtyped(fn, typechecker=typechecker)
    checking = checks_of_inner(fn, typechecker) if "<locals>" in fn.__qualname__ else typechecker(fn)
    if checking is fn:  # nothing to check
        return fn
    config = jaxtyping.config

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return fn(*args, **kwargs)
        return checking(*args, **kwargs)

    @wraps(fn)
    def call_in_scope(*args: Any, **kwargs: Any) -> Any:
        if config.jaxtyping_disable:
            return fn(*args, **kwargs)
        with _scope:
            return checking(*args, **kwargs)

    return call_in_scope if any(map(has_shape, fn.__annotations__.values())) else call


def has_shape(annotation: Any) -> bool:
    """Return whether jaxtyping checks a part of the annotation."""
    if isinstance(annotation, list | tuple):  # the arguments of a callable
        return any(map(has_shape, annotation))
    kind = getattr(annotation, "__origin__", annotation)
    own = isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractArray)
    return own or any(map(has_shape, get_args(annotation)))


def checks_of_inner(fn: Callable[..., Any], typechecker: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return `fn`, which is defined inside a function, with checks that all functions of this definition share."""
    key = (fn.__module__, fn.__qualname__, fn.__code__)
    if key not in _inner_checks:

        @wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            return _running.function(*args, **kwargs)

        _inner_checks[key] = typechecker(run)
    checking = _inner_checks[key]

    def call(*args: Any, **kwargs: Any) -> Any:
        _running.function = fn  # between here and `run` only types are checked
        return checking(*args, **kwargs)

    return call


def install() -> None:
    """Check every annotated call of soap, which must not be imported yet."""
    jaxtyping.install_import_hook("soap", "shape_checks.checked")
    # The hook writes the decorator `@jaxtyping.jaxtyped(typechecker=...)` above each function and class.
    jaxtyping.jaxtyped = lambda *, typechecker: partial(with_checks, typechecker=typechecker)
