"""Self-supervised online adversarial purification (SOAP).

    model  = soap.load("mnist-cnn-dr")
    attack = soap.attacks.PGD(eps=0.3, step_size=0.01, steps=40)
    x_adv  = attack(model, x, y)
    purify = soap.Purifier(model, eps="min-aux")
    robust = soap.Defended(model, purify)
    labels = robust(x_adv).argmax(1)
"""

__version__ = "0.1.0"  # before the imports: modules below may read it

from soap import attacks, auxiliary, data, evaluation, models, purify, recipes, training, zoo
from soap.auxiliary import JointModel
from soap.errors import FileError, InputError, SoapError
from soap.purify import Defended, Purified, Purifier
from soap.zoo import load, load_prior

__all__ = [
    "Defended",
    "FileError",
    "InputError",
    "JointModel",
    "Purified",
    "Purifier",
    "SoapError",
    "attacks",
    "auxiliary",
    "data",
    "evaluation",
    "load",
    "load_prior",
    "models",
    "purify",
    "recipes",
    "training",
    "zoo",
]
