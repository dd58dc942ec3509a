"""Pictures of the pages: one SVG each, which is in light what the light figure is and in dark what the dark one is."""

import base64
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image
from report_samples import sample_showcase
from run_samples import sample_images, sample_run

from soap.report import demo_page, drawing, run_figures
from soap.report.drawing import DARK, LIGHT, Palette, svg
from soap.report.html import picture
from soap.report.run_page import render_run

NAMES = ["digits", "steps", "radii", "bars", "run radii", "run losses"]
STYLE = re.compile(r"<style.*?</style>")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sample_run(tmp_path_factory.mktemp("pictures") / "run", sample_images())


@pytest.fixture(scope="module")
def draw(run):
    """Every figure of the demo's page and of a run's, by its name and a palette."""
    show, folder = sample_showcase(4), run.folder
    by_name = {
        "digits": lambda: demo_page.draw_digits(show),
        "steps": lambda: demo_page.draw_steps(show),
        "radii": lambda: demo_page.draw_radii(show),
        "bars": lambda: run_figures.draw_bars(run),
        "run radii": lambda: run_figures.radii_figure(folder).figure,
        "run losses": lambda: run_figures.losses_figure(folder).figure,
    }
    assert list(by_name) == NAMES

    def drawn(name, palette):
        with pytest.MonkeyPatch.context() as patch:
            for module in (drawing, demo_page, run_figures):
                patch.setattr(module, "LIGHT", palette)
            return by_name[name]()

    return drawn


def markup(address: str) -> str:
    return base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")).decode()


def seen(text: str, palette: Palette) -> str:
    """What a reader of a picture sees if the variables have the palette's colours; ids, made of colours, by number."""
    for name, colour in asdict(palette).items():
        text = text.replace(f"var(--{name})", colour)
    text = STYLE.sub("", text).replace('style="fill: #', 'fill="#')  # where a lone fill stands makes no difference
    ids = {name: f"id{k}" for k, name in enumerate(dict.fromkeys(re.findall(r' id="([^"]+)"', text)))}
    return re.sub(r'( id="|href="#|url\(#)([^")]+)', lambda found: found[1] + ids[found[2]], text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_it_is_the_figure_drawn_in_the_palette(draw, name, palette):
    wanted = svg(draw(name, palette)).decode()
    if name == "digits":  # matplotlib's own white behind a panel, which covers it, is taken for paper
        wanted = wanted.replace(LIGHT.paper, palette.paper)
    assert seen(markup(picture(draw(name, LIGHT), "").split('"')[1]), palette) == seen(wanted, palette)


@pytest.mark.parametrize("name", NAMES)
def test_the_style_alone_knows_colours_and_each_is_declared(draw, name):
    text = markup(picture(draw(name, LIGHT), "").split('"')[1])
    ET.fromstring(text)
    (style,) = STYLE.findall(text)
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for part, palette in ((light, LIGHT), (dark, DARK)):
        assert dict(re.findall(r"--(\w+): (#\w+)", part)) == asdict(palette)
    rest = STYLE.sub("", text).lower()
    assert [colour for colour in asdict(LIGHT).values() if colour in rest] == []
    assert {*re.findall(r"var\(--(\w+)\)", rest)} <= {*asdict(LIGHT)}
    in_styles = sum(attribute.count("var(") for attribute in re.findall(r' style="([^"]*)"', rest))
    assert in_styles == rest.count("var(") > 0  # elsewhere a variable is no colour


def test_a_palette_colour_means_one_thing():
    assert len({*asdict(LIGHT).values()}) == len(asdict(LIGHT))


def test_palette_colours_are_known_however_they_are_written(draw, monkeypatch):
    plain = STYLE.sub("", markup(picture(draw("bars", LIGHT), "").split('"')[1]))
    odd = replace(LIGHT, paper="#FFF", ink=LIGHT.ink.upper())
    monkeypatch.setattr("soap.report.drawing.LIGHT", odd)
    assert STYLE.sub("", markup(picture(draw("bars", odd), "").split('"')[1])) == plain


def test_a_colour_of_no_palette_stays():
    figure = Figure(facecolor=LIGHT.paper)
    figure.text(0.1, 0.5, "x", color="#123456")
    figure.text(0.5, 0.5, "x", color=LIGHT.ink)
    text = markup(picture(figure, "").split('"')[1])
    assert (text.count("fill: #123456"), text.count("fill: var(--ink)")) == (1, 1)


def test_the_same_figure_gives_the_same_picture(draw):
    assert picture(draw("bars", LIGHT), "words") == picture(draw("bars", LIGHT), "words")


@pytest.fixture
def browser(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "serve")
    from browsing import chromium

    with chromium() as opened:
        yield opened


def test_a_browser_shows_each_scheme_its_colours(browser, run, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_run(run, sample_images(), command=""), encoding="utf-8")
    for scheme, palette in (("light", LIGHT), ("dark", DARK)):
        page = browser.new_page(color_scheme=scheme)
        page.goto(path.as_uri())
        shot = Image.open(io.BytesIO(page.locator(".bars img").screenshot())).convert("RGB")
        shown = {"#" + bytes(colour).hex(): pixels for pixels, colour in shot.getcolors(shot.width * shot.height)}
        assert max(shown, key=shown.get) == palette.paper
        assert {palette.ink, palette.purified, palette.adversarial} <= {*shown}
