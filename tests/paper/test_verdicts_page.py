"""The paper's claims on the pages: those that did not hold first, each with its rule and both verdicts."""

from page_results import results_markdown

from soap.paper.claims import Claim, ClaimPart, ClaimVerdict
from soap.paper.comparison import SIGNS
from soap.paper.judging import (
    MARKS,
    TITLE,
    VERDICT_WORDS,
    JudgedClaim,
    count_text,
    grouped_by_verdict,
    signs_text,
)
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
    page = results_markdown(TEXT_TABLES, JUDGED)
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
    assert "### ✓" not in results_markdown(TEXT_TABLES, JUDGED[1:])
