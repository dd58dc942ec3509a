"""A real browser on the page of the service, watched: what it asks for, and what it complains of."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

REQUIRED = os.environ.get("SOAP_BROWSER_TESTS") == "required"
PATIENCE = 20_000
"""Milliseconds until something that should show is missed."""


def missing(what: str) -> None:
    """Skip, or fail where the browser is required."""
    words = f"{what} is missing: the page was not tried in a browser"
    (pytest.fail if REQUIRED else pytest.skip)(words)


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's chromium, driven by playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    program = shutil.which("chromium")
    if program is None:
        missing("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@dataclass(kw_only=True)
class Visit:
    """A page that was opened, and what is noted of it."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, models: str = "The network sees") -> None:
        """Go to the page and wait until it has looked at its first example."""
        self.page.goto(self.address)
        self.wait_for_status(models)

    def wait_for_status(self, words: str) -> None:
        """Wait for the sentence on what the network sees."""
        self.page.locator("#status", has_text=words).wait_for()

    def trouble(self, words: str) -> None:
        """Wait for an error; the browser's own note of a refused request is no complaint."""
        self.page.locator("#trouble", has_text=words).wait_for()
        self.complaints = [each for each in self.complaints if "the server responded with a status of" not in each]

    def press(self, name: str) -> None:
        """Press a button of this very name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def draw(self, *strokes: list[tuple[float, float]]) -> None:
        """Draw strokes with the mouse, in parts of the pad's width."""
        box = self.page.locator("#pad").bounding_box()
        for stroke in strokes:
            first, *rest = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
            self.page.mouse.move(*first)
            self.page.mouse.down()
            for place in rest:
                self.page.mouse.move(*place, steps=5)
            self.page.mouse.up()

    def seen(self, stage: str) -> str:
        """The class that a stage names."""
        return str(self.page.locator(f"#stage-{stage} .seen b").inner_text())


@contextmanager
def visited(browser: Any, address: str, **options: Any) -> Iterator[Visit]:
    """A visit to the page; fails at the end if the browser logged an error or requested another address."""
    context = browser.new_context(**{"reduced_motion": "reduce", **options})
    context.set_default_timeout(PATIENCE)
    visit = Visit(page=context.new_page(), address=address)
    visit.page.on("console", lambda line: line.type in ("error", "warning") and visit.complaints.append(line.text))
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("request", lambda request: visit.asked.append(request.url))
    yield visit
    context.close()
    assert visit.complaints == []
    assert [url for url in visit.asked if not url.startswith((address, "data:", "blob:"))] == []
