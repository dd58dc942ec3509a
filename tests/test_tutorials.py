"""The tutorials tell the truth: their Python blocks run in order, and what they say of the figures holds."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from soap.isolation import same_random_state

ROOT = Path(__file__).parents[1]
MARK = "The Python blocks of this page run in order as a test"
PAGES = {page.stem: text for page in (ROOT / "docs").glob("*.md") if MARK in (text := page.read_text(encoding="utf-8"))}


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_there_is_something_to_run():
    assert "your_own_model" in PAGES
    assert all(blocks(text) for text in PAGES.values())


@pytest.mark.usefixtures("unchecked_shapes")  # a user has no run-time checks, and they take their time
@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_block_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOAP_COMMIT", "test")
    names: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    with same_random_state(), contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks(PAGES[page]), 1):
            exec(compile(block, f"{page}.md, block {number}", "exec"), names)
    if page == "your_own_model":
        check_your_own_model(names, printed.getvalue(), tmp_path)


def check_your_own_model(names, printed, folder):
    plain, untrained, tuned = (names[key] for key in ("plain", "untrained", "tuned"))
    assert plain["clean"] > 0.85
    assert plain["attacked"] < 0.15
    assert untrained["attacked"] > plain["attacked"]
    assert untrained["clean"] < plain["clean"]
    assert tuned["attacked"] > tuned["attacked, not purified"]
    assert tuned["clean"] > 0.85
    assert names["found"].helps
    assert {path.suffix for path in (folder / "runs" / "tune").iterdir()} == {".json", ".png", ".svg"}
    assert re.findall(r"^(quick|full) worst .* of (\d+) images: [A-Z]+", printed, re.MULTILINE) == [
        ("quick", "20"),
        ("full", "4"),
    ]
    assert names["report"].summary.worst.correct == 0  # of the full suite, at a radius that nothing withstands


@pytest.mark.parametrize("page", sorted(PAGES))
def test_linked_files_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]):
        assert (ROOT / "docs" / target).exists(), target
