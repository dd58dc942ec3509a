"""The adaptive suite: attack a defence as one who knows it would, and doubt the number that comes out."""

from soap.evaluation.adaptive.attempts import SUITES, Attempt, Threat, attempts
from soap.evaluation.adaptive.evaluate import Report, evaluate, read
from soap.evaluation.adaptive.folder import RunFolder
from soap.evaluation.adaptive.target import Target
from soap.evaluation.adaptive.verdict import Verdict, headline
from soap.evaluation.adaptive.verify import Verification, verify

__all__ = [
    "SUITES",
    "Attempt",
    "Report",
    "RunFolder",
    "Target",
    "Threat",
    "Verdict",
    "Verification",
    "attempts",
    "evaluate",
    "headline",
    "read",
    "verify",
]
