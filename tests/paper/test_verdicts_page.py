"""The paper's claims on the pages: those that did not hold first, each with its rule and both verdicts."""

import re
from html.parser import HTMLParser

import pytest

from soap.paper.claims.checks import Claim, ClaimPart, ClaimVerdict
from soap.paper.claims.judging import (
    MARKS,
    TITLE,
    VERDICT_WORDS,
    JudgedClaim,
    count_text,
    grouped_by_verdict,
    signs_text,
)
from soap.paper.comparison import SIGNS
from soap.paper.pages.results import results_html, results_markdown
from soap.paper.tables import TABLES


def judged(name, text, rule, ours, printed=None):
    claim = Claim(name=name, text=text, section="4.1", about=("table-1", "figure-5"), rule=rule)
    return JudgedClaim(claim=claim, ours=ours, printed=printed)


def verdict(*parts):
    return ClaimVerdict(tuple(ClaimPart(held=held, words=words) for held, words in parts))


JUDGED = [
    judged("a", "It holds.", "one", verdict((True, "1.00†")), verdict((True, ""))),
    judged("b", "It is open.", "two", ClaimVerdict((ClaimPart(held=None, missing=(("rows", ""),)),))),
    judged(
        "c",
        "It fails as |beta| <grows>.",
        "three",
        verdict((False, "2 < 3"), (True, "4")),
        verdict((False, "5 & 6")),
    ),
]
TEXT_TABLES = [table for table in TABLES.values() if not hasattr(table, "cells")]


def test_counts_and_order():
    assert [one.claim.name for own in grouped_by_verdict(JUDGED).values() for one in own] == ["c", "a", "b"]
    assert count_text(JUDGED) == "1 did not hold, 1 held, 1 not decided"
    assert count_text([]) == "0 did not hold, 0 held, 0 not decided"
    assert len(set(MARKS.values())) == len(set(VERDICT_WORDS.values())) == 3  # colour is not the only sign


def test_words():
    assert JUDGED[0].source == "section 4.1; Table 1, Figure 5"
    assert [one.printed_text for one in JUDGED] == ["held", "no numbers printed", "did not hold: 5 & 6"]
    assert signs_text(JUDGED) == f"† {SIGNS['†']}"
    assert signs_text(JUDGED[1:]) == ""


def test_markdown_lists_what_did_not_hold_first():
    page = results_markdown(TEXT_TABLES, JUDGED, command="c")
    places = [page.index(text) for text in (f"## {TITLE}", "### ✗ Did not hold: 1", "### ✓ Held: 1", "### ○ Not dec")]
    assert places == sorted(places)
    assert places[-1] < page.index("## The tables, and what is missing")
    assert "Of 3 claims: 1 did not hold, 1 held, 1 not decided." in page
    line = (
        "| It fails as \\|beta\\| <grows>. (section 4.1; Table 1, Figure 5) *Rule: three.* "
        "| Against it: 2 < 3. For it: 4. | did not hold: 5 & 6 |"
    )
    assert line in page
    assert f"† {SIGNS['†']}." in page
    assert "### ✓" not in results_markdown(TEXT_TABLES, JUDGED[1:], command="c")


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.counts = [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("claims", [JUDGED, JUDGED[:1], JUDGED[1:2], []], ids=len)
def test_html_is_whole_for_any_verdicts(claims):
    page = results_html(TEXT_TABLES, claims, command="c")
    tags = Tags(page).counts
    regions = len(re.findall(r'<div class="scroll" role="region"[^>]*tabindex="0">', page))
    assert regions == tags["table"] == 1 + len(TEXT_TABLES) + len({one.ours.held for one in claims})
    for held, own in grouped_by_verdict(claims).items():
        assert f"{MARKS[held]} <b>{len(own)}</b> {VERDICT_WORDS[held]}" in page
    for table in re.findall(r'<table class="claims">.*?</table>', page, re.DOTALL):
        lines = [re.findall(r"<t[dh]\b", line) for line in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
        assert {len(line) for line in lines} == {3}


def test_html_escapes_links_and_folds_what_is_open():
    whole = [*TABLES.values()][4:7]
    page = results_html(whole, JUDGED, command="c")
    assert "It fails as |beta| &lt;grows&gt;." in page
    assert "<p><b>Against it:</b> 2 &lt; 3.</p><p><b>For it:</b> 4.</p>" in page
    assert "did not hold: 5 &amp; 6" in page
    assert '<a href="#table-1">Table 1</a>, Figure 5</span>' in page
    assert page.index("Did not hold: 1</h3>") < page.index("Held: 1</h3>") < page.index("<details>")
    assert "It is open." in page[page.index("<details>") : page.index("</details>")]
