"""The two ways a call can fail for a reason the caller can mend.

Every message says what was got, what is wanted, and what to do next. The command line prints the message
alone; anything that is not a `SoapError` is a defect of this library.
"""

import difflib
from collections.abc import Iterable


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
