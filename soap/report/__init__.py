"""Rows and tensors in, tables, figures and pages out; nothing here trains or attacks."""

from soap.report.accuracy import UPPER_BOUND, Line, percent, under_attack
from soap.report.digits import draw_digits
from soap.report.drawing import DARK, LIGHT, Palette, png, svg
from soap.report.losses import draw_radii, draw_steps
from soap.report.page import demo_page

__all__ = [
    "DARK",
    "LIGHT",
    "UPPER_BOUND",
    "Line",
    "Palette",
    "demo_page",
    "draw_digits",
    "draw_radii",
    "draw_steps",
    "percent",
    "png",
    "svg",
    "under_attack",
]
