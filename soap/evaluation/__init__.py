"""Protocols that turn a model, attacks and purifiers into result rows."""

from soap.evaluation.provenance import fingerprint
from soap.evaluation.threats import PAPER, Clean
from soap.evaluation.transfer import evaluate_transfer, save_images

__all__ = ["PAPER", "Clean", "evaluate_transfer", "fingerprint", "save_images"]
