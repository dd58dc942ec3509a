"""Evaluation of a defence: by given attacks, by a suite of adaptive attacks with checks, and tuning of its settings."""

from soap.evaluation.certificates import Certificate, certify
from soap.evaluation.comparison import ProtocolComparison, RunComparison, compare_runs
from soap.evaluation.detection import DetectionReport, DetectionResult, evaluate_detection
from soap.evaluation.protocols import PROTOCOLS, SUITES, Threat
from soap.evaluation.provenance import fingerprint
from soap.evaluation.shards import AttackedShard, merge_runs
from soap.evaluation.suite import Report, SuiteReport, evaluate, read_report
from soap.evaluation.transfer import PAPER, Clean, evaluate_transfer, save_images
from soap.evaluation.tuning import tune
from soap.evaluation.verdict import RobustnessVerdict, headline
from soap.evaluation.verification import Verification, verify_run

__all__ = [
    "PAPER",
    "PROTOCOLS",
    "SUITES",
    "AttackedShard",
    "Certificate",
    "Clean",
    "DetectionReport",
    "DetectionResult",
    "ProtocolComparison",
    "Report",
    "RobustnessVerdict",
    "RunComparison",
    "SuiteReport",
    "Threat",
    "Verification",
    "certify",
    "compare_runs",
    "evaluate",
    "evaluate_detection",
    "evaluate_transfer",
    "fingerprint",
    "headline",
    "merge_runs",
    "read_report",
    "save_images",
    "tune",
    "verify_run",
]
