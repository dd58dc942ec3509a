"""The classifier and the purifier as ONNX files, which run without torch; and whether they do what torch does."""

from soap.export.checking import ENOUGH, Agreement, check
from soap.export.opening import MANIFEST, Opened, opened
from soap.export.parts import PARTS
from soap.export.writing import OPSETS, Exported, export

__all__ = ["ENOUGH", "MANIFEST", "OPSETS", "PARTS", "Agreement", "Exported", "Opened", "check", "export", "opened"]
