"""The same attacks by foolbox at equal settings, where it is installed."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

from soap.attacks import PGD, Attack, CarliniWagner, DeepFool
from soap.auxiliary import JointModel
from soap.shapes import Tensor


def installed() -> bool:
    """Whether there is a foolbox to compare with."""
    return importlib.util.find_spec("foolbox") is not None


def foolbox_run(attack: Attack, model: JointModel, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """foolbox's counterpart of an attack of ours, ready to run on a batch."""
    with warnings.catch_warnings():  # foolbox imports scipy by names of old
        warnings.simplefilter("ignore", DeprecationWarning)
        foolbox: Any = importlib.import_module("foolbox")
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
    options = {}
    match attack:
        case PGD():
            theirs = foolbox.attacks.LinfPGD(abs_stepsize=attack.step_size, steps=attack.steps, random_start=False)
            options = {"epsilon": attack.eps}
        case DeepFool():
            theirs = foolbox.attacks.L2DeepFoolAttack(
                steps=attack.steps, candidates=attack.candidates, overshoot=attack.overshoot, loss="logits"
            )
        case CarliniWagner():
            theirs = foolbox.attacks.L2CarliniWagnerAttack(
                binary_search_steps=attack.search_steps,
                steps=attack.steps,
                stepsize=attack.lr,
                confidence=attack.confidence,
                initial_const=attack.initial_c,
                abort_early=attack.abort_early,
            )
        case _:
            raise TypeError(f"no counterpart of {attack!r} in foolbox")

    def run() -> Tensor:
        found: Tensor = theirs.run(wrapped, x, y, **options)
        return found

    return run
