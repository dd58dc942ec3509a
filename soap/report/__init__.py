"""Tables, plots and pages made from result rows; nothing here trains or attacks.

This module has the text functions. Plots and pages are in submodules, which import matplotlib and jinja2.
"""

from soap.report.row_text import (
    UPPER_BOUND,
    AttackLine,
    markdown_table,
    models_table,
    percent,
    under_attack,
    with_section,
)

__all__ = ["UPPER_BOUND", "AttackLine", "markdown_table", "models_table", "percent", "under_attack", "with_section"]
