"""The documentation site builds without a warning, its links lead somewhere, and it asks nobody else for anything."""

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import soap

ROOT = Path(__file__).parents[1]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
NOT_FETCHED = {"canonical", "next", "prev", "license", "author"}
REFERENCE = ROOT / "docs" / "reference"
ROOMS = [
    *(f"soap.{name}" for name in soap.__all__ if hasattr(getattr(soap, name), "__all__")),
    "soap.export",
]
FIGURES = ("figure-1", "figure-3", "figure-6")


class Page(HTMLParser):
    """What a page links to, what it fetches when it is looked at, and the places in it that links can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (address := given.get(FETCHED.get(tag, ""))) and given.get("rel") not in NOT_FETCHED:
            self.fetched.append(address)
        self.fetched += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs, of the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    made = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def outside(address):
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_there_is_a_page_for_every_source(site):
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    for source in sources:
        assert (site / source).exists() or source.name == "README.html", source
    assert (site / "checks" / "index.html").exists()


def test_pages_fetch_nothing_from_elsewhere(site, pages):
    assert [(path.name, address) for path, page in pages.items() for address in page.fetched if outside(address)] == []
    for style in site.rglob("*.css"):
        fetched = re.findall(r"(?:url\(|@import)\s*['\"]?([^)'\";]+)", style.read_text(encoding="utf-8"))
        assert [address for address in fetched if outside(address)] == []


def test_links_and_files_of_pages_are_there(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # the theme's own, with addresses from the root of a server
            continue
        for address in {*page.links, *page.fetched}:
            if outside(address) or address.startswith("data:"):
                continue
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            found = target.is_file() and (not place or target not in pages or place in pages[target].places)
            if not found:
                broken.append((str(path.relative_to(site)), address))
    assert broken == []


def test_reports_and_examples_come_along(site):
    assert list((site / "results" / "adaptive").glob("*/report.html"))
    assert (site / "examples" / "own_purifier.html").exists()
    assert (site / "results-on-one-page.html").read_bytes() == (ROOT / "docs" / "results.html").read_bytes()


def test_every_command_has_its_reference(site):
    import typer.main

    from soap.cli import app

    text = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for name in typer.main.get_command(app).commands:
        assert f'id="soap-{name}' in text


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_its_reference(site, room):
    module = importlib.import_module(room)
    page = next(page for page in REFERENCE.glob("*.md") if f"\n::: {room}\n" in page.read_text(encoding="utf-8"))
    places = Page(site / "reference" / f"{page.stem}.html").places
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):  # one that has the name of its module is shown as there
            assert {f"{room}.{name}", f"{value.__module__}.{name}"} & places, name


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_are_those_of_the_rows(name, tmp_path):
    """If this fails: `soap reproduce NAME --out docs/images`, and keep the .svg."""
    import matplotlib

    from soap.cli import main

    committed = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    if f"Matplotlib v{matplotlib.__version__}," not in committed:
        pytest.skip(f"drawn by another matplotlib than {matplotlib.__version__}")
    assert main(["reproduce", name, "--out", str(tmp_path), "-q", "--json"]) == 0
    assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8") == committed


@pytest.fixture
def browser():
    program, found = shutil.which("chromium"), importlib.util.find_spec("playwright")
    if program is None or found is None:
        refuse = pytest.fail if os.environ.get("SOAP_BROWSER_TESTS") == "required" else pytest.skip
        refuse("chromium or playwright is missing: the site was not tried in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()


def test_the_search_works_from_a_folder_and_nobody_else_is_asked(site, browser):
    page, asked, complaints = browser.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: complaints.append(line.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search-result__meta", has_text="Type to start").wait_for()
    page.keyboard.insert_text("min-aux")  # at once: of "min-" the search complains in the console
    page.keyboard.press("End")  # it looks at its field when a key is let go
    page.locator(".md-search-result__item", has_text="How far to go").first.wait_for()
    page.goto((site / "reference" / "attacks.html").as_uri())
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
