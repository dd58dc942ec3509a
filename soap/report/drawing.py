"""Colours for light and dark pages, and figures as PNG and SVG files. Uses matplotlib's object API, never pyplot."""

import io
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soap._files import atomic


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours that differ in lightness as well as hue, so that they stay distinct with any colour blindness.

    After Okabe and Ito, darkened or lightened to a text contrast of 4.5 on `paper`.
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


def show_zero(axes: Axes) -> None:
    """Extend the y axis to zero after everything is drawn; an axis without zero exaggerates differences."""
    axes.set_ylim(bottom=0 if axes.dataLim.y0 >= 0 else None, top=0 if axes.dataLim.y1 < 0 else None)


def save_figure(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write `out`/NAME.png and `out`/NAME.svg; the same figure gives the same bytes."""
    paths = []
    for kind, content in {"png": png(figure), "svg": svg(figure)}.items():
        paths.append(out / f"{name}.{kind}")
        with atomic.replace_file(paths[-1]) as temporary:
            temporary.write_bytes(content)
    return paths


def png(figure: Figure, dots_per_inch: int = 200) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file with text as outlines and no external parts."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "soap"}):  # without a salt ids are random and files differ
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _smaller(buffer.getvalue().decode()).encode()


def _smaller(text: str) -> str:
    """The same SVG without comments and white space, coordinates rounded to a hundredth of a point."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' d="[^"]*"', lambda path: " " + re.sub(r"\s*([MLQCz])\s*", r"\1", _rounded(path[0][1:])), text)
    text = text.replace("DejaVuSans-", "D")  # glyph names are repeated at every use
    return re.sub(r">\s+<", "><", re.sub(r"[ \t\n]+", " ", text)) + "\n"


def _rounded(numbers: str) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", numbers)
