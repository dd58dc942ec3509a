"""Colours for light and dark pages, and figures as files and pictures. Matplotlib's object API alone, never pyplot."""

import base64
import io
import re
from dataclasses import asdict, dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure on a page: the address of its <img>, and what it shows in words."""

    src: str
    alt: str


def picture(figure: Figure, alt: str) -> Picture:
    """The picture of a figure drawn in LIGHT: one SVG that has DARK's colours where the page is dark.

    A browser that does not look for that inside an <img> shows LIGHT's colours, on LIGHT's paper.
    """
    content = base64.b64encode(_following(svg(figure).decode()).encode())
    return Picture(src=f"data:image/svg+xml;base64,{content.decode()}", alt=alt)


def show_zero(axes: Axes) -> None:
    """Once all is drawn: zero is seen, and is an end of the axis where nothing lies beyond; a cut axis exaggerates."""
    axes.set_ylim(bottom=0 if axes.dataLim.y0 >= 0 else None, top=0 if axes.dataLim.y1 < 0 else None)


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file, with letters as outlines and everything inside."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "soap"}):  # else ids are random, and no page is like another
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _lean(buffer.getvalue().decode()).encode()


def _following(markup: str) -> str:
    """The same SVG with LIGHT's colours as CSS variables, which are DARK's in the dark. Other colours stay."""
    names = {to_hex(colour): f"var(--{name})" for name, colour in asdict(LIGHT).items()}  # as matplotlib writes them
    markup = re.sub(r' fill="(#\w+)"', r' style="fill: \1"', markup)  # behind hatches; variables count in a style only
    markup = re.sub(r"(fill: |stroke: )(#\w+)", lambda found: found[1] + names.get(found[2], found[2]), markup)
    light, dark = ("; ".join(f"--{name}: {colour}" for name, colour in asdict(p).items()) for p in (LIGHT, DARK))
    rules = f":root{{{light}}} @media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return markup.replace("</style>", f" {rules}</style>", 1)


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
