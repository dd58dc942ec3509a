"""Self-supervised online adversarial purification (SOAP).

model  = soap.load("mnist-cnn-dr")
attack = soap.attacks.PGD(eps=0.3, step_size=0.01, steps=40)
x_adv  = attack(model, x, y)
purify = soap.SOAP(model, eps="min-aux")
robust = soap.Defence(model, purify)
labels = robust(x_adv).argmax(1)

Packages and names are imported when they are first used, so `import soap` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soap import attacks, auxiliary, data, evaluation, gradient_rules, models, purifiers, recipes, training, zoo
    from soap.auxiliary import JointModel, wrap
    from soap.defence import Defence
    from soap.errors import FileError, InputError, SoapError
    from soap.evaluation import evaluate, tune
    from soap.onnx_export import export
    from soap.purifiers import SOAP, Purified
    from soap.training import fit
    from soap.zoo import load, load_prior

__version__ = "0.1.0"

__all__ = [
    "SOAP",
    "Defence",
    "FileError",
    "InputError",
    "JointModel",
    "Purified",
    "SoapError",
    "attacks",
    "auxiliary",
    "data",
    "evaluate",
    "evaluation",
    "export",
    "fit",
    "gradient_rules",
    "load",
    "load_prior",
    "models",
    "purifiers",
    "recipes",
    "training",
    "tune",
    "wrap",
    "zoo",
]

_MODULES = {
    "SOAP": "purifiers",
    "Defence": "defence",
    "FileError": "errors",
    "InputError": "errors",
    "JointModel": "auxiliary",
    "Purified": "purifiers",
    "SoapError": "errors",
    "evaluate": "evaluation",
    "export": "onnx_export",
    "fit": "training",
    "load": "zoo",
    "load_prior": "zoo",
    "tune": "evaluation",
    "wrap": "auxiliary",
}
"""The module of each public name; the others are packages."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'soap' has no attribute {name!r}")
    module = importlib.import_module(f"soap.{_MODULES.get(name, name)}")
    value = globals()[name] = getattr(module, name) if name in _MODULES else module
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
