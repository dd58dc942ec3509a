"""Protocols that turn a model, an attack and a purifier into result rows."""

from soap.evaluation.provenance import fingerprint
from soap.evaluation.threats import PAPER, Clean
from soap.evaluation.transfer import save_images, transfer

__all__ = ["PAPER", "Clean", "fingerprint", "save_images", "transfer"]
