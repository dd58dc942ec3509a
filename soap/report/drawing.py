"""Colours for light and dark pages, and figures as bytes. Matplotlib's object API alone, never pyplot."""

import base64
import io
import re
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours that differ in lightness as well as hue, so that no kind of colour blindness merges them.

    After Okabe and Ito, darkened or lightened until letters in them reach a contrast of 4.5 on `paper`.
    """

    paper: str
    ink: str
    faint: str
    clean: str
    adversarial: str
    purified: str


LIGHT = Palette(
    paper="#ffffff", ink="#1c2127", faint="#d5dae0", clean="#0067a3", adversarial="#b84a00", purified="#007355"
)
DARK = Palette(
    paper="#15191e", ink="#e6e9ed", faint="#3a424b", clean="#6bbcf0", adversarial="#ff9d57", purified="#3fcb9c"
)


def svg(figure: Figure) -> str:
    """The figure as the address of an <img>: SVG with letters as outlines, everything inside."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "soap"}):  # else ids are random, and no page is like another
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(_lean(buffer.getvalue().decode()).encode()).decode()}"


def _lean(text: str) -> str:
    """The same SVG without what no browser looks at, its lines to a hundredth of a point."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' d="[^"]*"', lambda path: " " + re.sub(r"\s*([MLQCz])\s*", r"\1", _rounded(path[0][1:])), text)
    text = text.replace("DejaVuSans-", "D")  # letters are named again wherever they stand
    return re.sub(r">\s+<", "><", re.sub(r"[ \t\n]+", " ", text)) + "\n"


def _rounded(numbers: str) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", numbers)


def png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()
