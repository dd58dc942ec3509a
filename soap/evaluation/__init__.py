"""Evaluation of a defence: by given attacks, by a suite of adaptive attacks with checks, and tuning of its settings."""

from soap.evaluation.plan import PROTOCOLS, SUITES, Threat
from soap.evaluation.provenance import fingerprint
from soap.evaluation.suite import Report, SuiteReport, evaluate, evaluate_suite, read_report
from soap.evaluation.transfer import PAPER, Clean, evaluate_transfer, save_images
from soap.evaluation.tuning import tune
from soap.evaluation.verdict import RobustnessVerdict, headline
from soap.evaluation.verification import Verification, verify_run

__all__ = [
    "PAPER",
    "PROTOCOLS",
    "SUITES",
    "Clean",
    "Report",
    "RobustnessVerdict",
    "SuiteReport",
    "Threat",
    "Verification",
    "evaluate",
    "evaluate_suite",
    "evaluate_transfer",
    "fingerprint",
    "headline",
    "read_report",
    "save_images",
    "tune",
    "verify_run",
]
