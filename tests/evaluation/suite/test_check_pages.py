"""Every check has a page, and every page a check."""

import re
from pathlib import Path

import pytest

from soap.evaluation.checks import CHECKS, Check

PAGES = Path(__file__).parents[3] / "docs" / "checks"


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.page)
def test_every_check_has_a_complete_page(check: Check):
    text = (PAGES / check.page).read_text(encoding="utf-8")
    assert text.startswith(f"# Check {check.number}: {check.name}\n")
    for part in ("**Why.**", "**What it means.**", "**What to do.**", "Source: "):
        assert part in text
    assert re.search(r"\b(FAIL|WARN): ", text)


def test_the_index_links_every_page():
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\[(\d+)\. ([^]]+)\]\(([^)]+)\)", index)
    assert links == [(str(number), check.name, check.page) for number, check in sorted(CHECKS.items())]
    assert {path.name for path in PAGES.iterdir()} == {check.page for check in CHECKS.values()} | {"README.md"}
