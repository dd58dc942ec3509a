"""The documentation site builds without warnings, has no broken links and loads nothing from other hosts."""

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
LOADED_BY = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
NOT_LOADED = {"canonical", "next", "prev", "license", "author"}
REFERENCE = ROOT / "docs" / "reference"
PACKAGES = [
    *(f"soap.{name}" for name in soap.__all__ if hasattr(getattr(soap, name), "__all__")),
    "soap.gradient_rules",
    "soap.onnx_export",
]
FIGURES = ("figure-3",)


class Page(HTMLParser):
    """The links of a page, the resources it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (address := given.get(LOADED_BY.get(tag, ""))) and given.get("rel") not in NOT_LOADED:
            self.loaded.append(address)
        self.loaded += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style", ""))


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


def is_external(address):
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_every_source_has_a_page(site):
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    for source in sources:
        assert (site / source).exists() or source.name == "README.html", source
    assert (site / "checks" / "index.html").exists()


def test_pages_load_nothing_from_other_hosts(site, pages):
    assert [
        (path.name, address) for path, page in pages.items() for address in page.loaded if is_external(address)
    ] == []
    for style in site.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import)\s*['\"]?([^)'\";]+)", style.read_text(encoding="utf-8"))
        assert [address for address in loaded if is_external(address)] == []


def test_links_and_resources_of_pages_exist(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # of the theme, with addresses relative to the server's root
            continue
        for address in {*page.links, *page.loaded}:
            if is_external(address) or address.startswith("data:"):
                continue
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            found = target.is_file() and (not anchor or target not in pages or anchor in pages[target].anchors)
            if not found:
                broken.append((str(path.relative_to(site)), address))
    assert broken == []


def test_findings_and_examples_are_on_the_site(site):
    assert list((site / "results" / "adaptive").glob("*/findings.json"))
    assert (site / "examples" / "own_purifier.html").exists()


def test_every_command_has_a_reference(site):
    from soap.cli import COMMANDS

    text = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f'id="soap-{name}' in text


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_reference(site, package):
    module = importlib.import_module(package)
    page = next(page for page in REFERENCE.glob("*.md") if f"\n::: {package}\n" in page.read_text(encoding="utf-8"))
    anchors = Page(site / "reference" / f"{page.stem}.html").anchors
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert {f"{package}.{name}", f"{value.__module__}.{name}"} & anchors, name


@pytest.mark.parametrize("name", FIGURES)
def test_committed_figures_match_the_rows(name, tmp_path):
    """If this fails: run `soap reproduce NAME --out docs/images` and commit the .svg."""
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
        refuse("chromium or playwright is missing: the site was not tested in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()


def test_search_works_from_a_folder_without_network_requests(site, browser):
    page, requests, console = browser.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda line: console.append(line.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search-result__meta", has_text="Type to start").wait_for()
    page.keyboard.insert_text("min-aux")  # in one piece: "min-" alone logs an error to the console
    page.keyboard.press("End")  # the search starts on key-up
    page.locator(".md-search-result__item", has_text="How far to go").first.wait_for()
    page.goto((site / "reference" / "attacks.html").as_uri())
    assert console == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
