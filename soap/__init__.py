"""Self-supervised online adversarial purification (SOAP).

model  = soap.load("mnist-cnn-dr")
attack = soap.attacks.PGD(eps=0.3, step_size=0.01, steps=40)
x_adv  = attack(model, x, y)
purify = soap.SOAP(model, eps="min-aux")
robust = soap.Defence(model, purify)
labels = robust(x_adv).argmax(1)
"""

__version__ = "0.1.0"  # before the imports: modules below may read it

from soap import attacks, auxiliary, data, evaluation, gradient_rules, models, purifiers, recipes, training, zoo
from soap.auxiliary import JointModel, wrap
from soap.defence import Defence
from soap.errors import FileError, InputError, SoapError
from soap.evaluation import evaluate, tune
from soap.purifiers import SOAP, Purified
from soap.training import fit
from soap.zoo import load, load_prior

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
