"""Networks of the user: a function that returns the network, by name or as an object, for the weights of a file."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from torch import nn

from soap.auxiliary import JointModel, restore
from soap.errors import InputError

Factory = str | Callable[[], nn.Module]
"""A function or class that returns a network or a `JointModel`, or its name "package:function"."""

EXPECTED = "expected PACKAGE:FUNCTION, e.g. nets:Classifier for the class Classifier in nets.py of the current folder"


def load_own(path: Path, module: Factory) -> JointModel:
    """Return the user's network with the weights of a file of `soap.fit`; the file itself contains no code."""
    make = _imported(module) if isinstance(module, str) else module
    try:
        made = make()
    except Exception as error:  # any, because it is code of the user
        raise InputError(f"module {factory_name(module)} raises {type(error).__name__}: {error}.") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"module {factory_name(module)} returns a {type(made).__name__}, expected a torch.nn.Module.")
    return restore(path, made)


def factory_name(module: Factory | None) -> str:
    """Return the name of a function or class for messages and tables."""
    return module if isinstance(module, str) else getattr(module, "__qualname__", repr(module))


def _imported(name: str) -> Callable[[], nn.Module]:
    """Return the function called "package:function"; like `python -m`, the current folder is searched first."""
    package, _, attribute = name.partition(":")
    if not package or not attribute:
        raise InputError(f"module is {name!r}, {EXPECTED}.")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(package), attribute)
    except Exception as error:
        raise InputError(f"module is {name!r}, but importing it raises {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise InputError(f"module is {name!r}, which is a {type(found).__name__}; {EXPECTED}.")
    make: Callable[[], nn.Module] = found
    return make
