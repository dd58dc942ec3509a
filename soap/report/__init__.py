"""Rows and tensors in, tables, figures and pages out; nothing here trains or attacks.

Text comes from here; figures and pages from their own modules, which import matplotlib and jinja2.
"""

from soap.report.accuracy import UPPER_BOUND, Line, percent, under_attack
from soap.report.markdown import markdown_table, models_table, with_section

__all__ = ["UPPER_BOUND", "Line", "markdown_table", "models_table", "percent", "under_attack", "with_section"]
