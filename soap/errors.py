"""Errors that the caller can fix: `InputError` and `FileError`.

Every message says what was given, what is expected and what to do. The command line prints the message without a
traceback. Any exception that is not a `SoapError` is a bug in this library.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


class SoapError(Exception):
    """Base class of all errors that the library raises itself."""


class InputError(SoapError, ValueError):
    """An argument, tensor, label, name or recipe is invalid (exit code 2)."""


class FileError(SoapError, OSError):
    """A file or folder is missing, truncated, corrupt or not writable (exit code 1)."""


def unknown(kind: str, got: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not in `known`; it suggests the most similar names."""
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}."
    return InputError(f"unknown {kind} {got!r}; {hint}")


def call_with(function: Callable[..., Any], options: dict[str, Any], kind: str) -> Any:
    """Return `function(**options)`; raise an InputError for an unknown or missing option.

    `kind` describes the options in the error, e.g. "key in [model]".
    """
    parameters = inspect.signature(function).parameters
    for name in options:
        if name not in parameters:
            raise unknown(kind, name, parameters)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in options:
            raise InputError(f"missing {kind} {name!r}.")
    return function(**options)
