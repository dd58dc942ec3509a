"""Save screenshots of the page of `soap serve` after an attack and its purification: light, dark, and on a phone.

    python tools/make_screenshots.py [OUT]

OUT is docs/images of this clone unless given; writes serve-light.png, serve-dark.png and serve-phone.png. Needs
playwright and chromium on the PATH.
"""

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
COMMAND = [sys.executable, "-m", "soap", "serve", "--port", "0", "--json"]
COMMAND += [f"--model={name}" for name in ("mnist-cnn-dr", "mnist-fcn-dr", "mnist-cnn-pgd-at", "mnist-fcn-no-def")]
COLOURS = 128
"""A page of few colours: a palette makes the files a third as large."""

SHOTS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 1330}},
    "dark": {"viewport": {"width": 1200, "height": 1330}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 760}, "device_scale_factor": 2, "has_touch": True},
}


def purify_example(page: Page, address: str) -> None:
    """Take the example 4, attack it, and purify it."""
    page.goto(address)
    page.get_by_role("button", name="Example: 4").click()
    page.get_by_text("The network sees 4").wait_for()
    page.get_by_role("button", name="Attack", exact=True).click()
    page.get_by_text("Attacked: the network saw").wait_for()
    page.get_by_role("button", name="Purify", exact=True).click()
    page.get_by_text("Radius").wait_for()
    page.locator("body:not([aria-busy])").wait_for()


def screenshot(page: Page, name: str) -> bytes:
    """The visible part as PNG: from the top, on a phone from the results."""
    start = "#results-title" if name == "phone" else "body"
    page.locator(start).evaluate("element => element.scrollIntoView()")
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def main(out: Path) -> None:
    """Start the service, save the screenshots, stop the service."""
    out.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            assert server.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                text += server.stdout.readline()
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            for name, options in SHOTS.items():
                page = browser.new_page(reduced_motion="reduce", **options)
                purify_example(page, json.loads(text)["url"])
                path = out / f"serve-{name}.png"
                path.write_bytes(screenshot(page, name))
                print(path, path.stat().st_size, "bytes")
            browser.close()
        finally:
            server.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else IMAGES)
