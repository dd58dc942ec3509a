"""The two ways a call can fail for a reason the caller can mend.

Every message says what was got, what is wanted, and what to do next. The command line prints the message
alone; anything that is not a `SoapError` is a defect of this library.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


class SoapError(Exception):
    """Base of all errors raised on purpose."""


class InputError(SoapError, ValueError):
    """An argument, tensor, label, name or recipe is not what the call takes (exit code 2)."""


class FileError(SoapError, OSError):
    """A file or folder is missing, truncated, corrupt, or cannot be written (exit code 1)."""


def unknown(kind: str, got: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not among `known`, with the nearest ones."""
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}."
    return InputError(f"unknown {kind} {got!r}; {hint}")


def call_with(function: Callable[..., Any], options: dict[str, Any], kind: str) -> Any:
    """`function(**options)`, with a clear error for an option it does not take or that is missing.

    `kind` names the options in the error, e.g. "key in [model]".
    """
    parameters = inspect.signature(function).parameters
    for name in options:
        if name not in parameters:
            raise unknown(kind, name, parameters)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise InputError(f"missing {kind} {name!r}.")
    return function(**options)
