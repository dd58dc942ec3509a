"""HTML pages in one file: the package's templates, and figures embedded as SVG."""

import base64
import re
from dataclasses import asdict

import jinja2
from markupsafe import Markup
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from soap.report import drawing
from soap.report.drawing import DARK, svg


def environment(package: str = "soap.report") -> jinja2.Environment:
    """A jinja2 environment with the templates of `package`; text is escaped, an unknown name raises an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def picture(figure: Figure, alt: str) -> Markup:
    """A figure drawn in LIGHT as an <img> of one SVG that uses DARK's colours on a dark page. alt: the text beside it.

    A browser without support for this inside an <img> shows LIGHT's colours on LIGHT's background.
    """
    content = base64.b64encode(_with_dark_mode(svg(figure).decode()).encode()).decode()
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(content, alt)


def _with_dark_mode(markup: str) -> str:
    """The SVG with LIGHT's colours as CSS variables, which have DARK's values in dark mode. Other colours stay."""
    light = drawing.LIGHT
    names = {to_hex(colour): f"var(--{name})" for name, colour in asdict(light).items()}  # as matplotlib writes them
    markup = re.sub(r' fill="(#\w+)"', r' style="fill: \1"', markup)  # CSS variables work in a style attribute only
    markup = re.sub(r"(fill: |stroke: )(#\w+)", lambda found: found[1] + names.get(found[2], found[2]), markup)
    rules = ["; ".join(f"--{name}: {colour}" for name, colour in asdict(p).items()) for p in (light, DARK)]
    style = f":root{{{rules[0]}}} @media (prefers-color-scheme: dark){{:root{{{rules[1]}}}}}"
    return markup.replace("</style>", f" {style}</style>", 1)
