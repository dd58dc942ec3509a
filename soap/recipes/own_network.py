"""Code of the user by name: a function that returns a network, for the weights of a file, or an attack."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from soap.attacks import Attack
from soap.auxiliary import JointModel, restore
from soap.errors import InputError

Factory = str | Callable[[], nn.Module]
"""A function or class that returns a network or a `JointModel`, or its name "package:function"."""

EXPECTED = "expected PACKAGE:FUNCTION, e.g. nets:Classifier for the class Classifier in nets.py of the current folder"


def load_own(path: Path, module: Factory) -> JointModel:
    """Return the user's network with the weights of a file of `soap.fit`; the file itself contains no code."""
    make = _imported(module, "module", EXPECTED) if isinstance(module, str) else module
    try:
        made = make()
    except Exception as error:  # any, because it is code of the user
        raise InputError(f"module {factory_name(module)} raises {type(error).__name__}: {error}.") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"module {factory_name(module)} returns a {type(made).__name__}, expected a torch.nn.Module.")
    return restore(path, made)


def own_attack(name: str, eps: float) -> Attack:
    """Return what the class or function called "package:name" makes of a radius: an attack in the ball of `eps`."""
    make = _imported(name, "extra attack", "expected PACKAGE:NAME, e.g. soap.attacks:BitFlips")
    try:
        made = make(eps=eps)
    except Exception as error:  # any, because it is code of the user
        raise InputError(f"extra attack {name}(eps={eps:g}) raises {type(error).__name__}: {error}.") from error
    if not isinstance(made, Attack):
        raise InputError(f"extra attack {name} returns a {type(made).__name__}, expected a soap.attacks.Attack.")
    return made


def factory_name(module: Factory | None) -> str:
    """Return the name of a function or class for messages and tables."""
    return module if isinstance(module, str) else getattr(module, "__qualname__", repr(module))


def _imported(name: str, role: str, expected: str) -> Callable[..., Any]:
    """Return the function called "package:function"; like `python -m`, the current folder is searched first."""
    package, _, attribute = name.partition(":")
    if not package or not attribute:
        raise InputError(f"{role} is {name!r}, {expected}.")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(package), attribute)
    except Exception as error:
        raise InputError(f"{role} is {name!r}, but importing it raises {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise InputError(f"{role} is {name!r}, which is a {type(found).__name__}; {expected}.")
    made: Callable[..., Any] = found
    return made
