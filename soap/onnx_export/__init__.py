"""Export the classifier and the purifier as ONNX files, which run without torch, and check them against torch."""

from soap.onnx_export.checking import MIN_AGREEMENT, PartAgreement, check_export
from soap.onnx_export.onnx_files import MANIFEST, OPSETS, PARTS, ExportedFiles, OnnxModel, export, open_onnx
from soap.onnx_export.triton import write_triton_repository

__all__ = [
    "MANIFEST",
    "MIN_AGREEMENT",
    "OPSETS",
    "PARTS",
    "ExportedFiles",
    "OnnxModel",
    "PartAgreement",
    "check_export",
    "export",
    "open_onnx",
    "write_triton_repository",
]
