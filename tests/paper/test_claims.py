"""The claims as data, and how parts make a verdict."""

import math
import re
import tomllib
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soap.paper.claims import CLAIMS, ClaimPart, ClaimVerdict, TableNumber, _part, claims_about, mostly
from soap.paper.figure_claims import FIGURE_CHECKS
from soap.paper.figure_data import FIGURES
from soap.paper.tables import TABLES

TABLE_CHECKS = {name for name, claim in CLAIMS.items() if claim.numbers}
DESCRIPTIONS = {"decoder-is-no-defence", "examples-of-table-2", "examples-of-attacks"}
OURS = {"ablation-gradients"}
"""Figures of ours, of which the paper says nothing."""


def test_every_claim_has_a_check_and_every_check_a_claim():
    assert not set(TABLE_CHECKS) & set(FIGURE_CHECKS)
    assert set(TABLE_CHECKS) | set(FIGURE_CHECKS) == set(CLAIMS) - DESCRIPTIONS
    assert set(CLAIMS) >= DESCRIPTIONS


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_has_its_words_its_section_and_what_it_is_about(claim):
    assert claim.text.endswith(".")
    assert re.fullmatch(r"section [\dA](\.\d)?", claim.place)
    assert claim.about
    assert set(claim.about) <= set(TABLES) | set(FIGURES)
    if claim.name in TABLE_CHECKS:
        assert any(name.startswith("table") for name in claim.about)
    if claim.name in TABLE_CHECKS | set(FIGURE_CHECKS):
        assert claim.rule
        assert not claim.rule.endswith(".")


def test_the_file_has_nothing_more():
    text = (resources.files("soap.paper") / "claims.toml").read_text(encoding="utf-8")
    words = {"text", "section", "about"}
    assert all(words <= set(entry) <= words | {"rule", "numbers", "mostly"} for entry in tomllib.loads(text).values())
    assert {claim.name for claim in CLAIMS.values() if not claim.rule} == DESCRIPTIONS
    assert len({claim.text for claim in CLAIMS.values()}) == len(CLAIMS)


def test_claims_are_found_by_what_they_are_about():
    assert [claim.name for claim in claims_about("figure-3")] == ["loss-tells-attack", "elbow-at-attack-radius"]
    assert [claim.name for claim in claims_about("ablation-leaking")] == ["labels-leak"]
    assert {name for name in FIGURES if not claims_about(name)} == OURS
    assert CLAIMS["labels-leak"].place == "section 4.1"


# --- Parts and verdicts -------------------------------------------------------------------------------------------


def test_evidence_tells_what_is_against_it_first_and_groups_by_subject():
    parts = (
        ClaimPart(held=True, subject="FCN", words="a"),
        ClaimPart(held=False, subject="CNN", words="b", missing=(("model", "CW"),)),
        ClaimPart(held=True, subject="FCN", words="c"),
        ClaimPart(held=None, words="d", missing=(("model", "DF"), ("model", "CW"), ("curve", ""))),
    )
    made = ClaimVerdict(parts)
    assert made.held is False
    assert made.against == "CNN: b"
    assert made.evidence == "Against it: CNN: b. For it: FCN: a, c. So far: d. Missing: model (CW, DF), curve."
    assert ClaimVerdict(parts[:1]).evidence == "For it: FCN: a."
    assert list(made.evidence_by_kind) == ["Against it", "For it", "So far", "Missing"]


HELD = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=6)


@given(HELD)
@settings(max_examples=50, deadline=None)
def test_a_claim_holds_where_all_of_it_holds(held):
    verdict = ClaimVerdict(tuple(ClaimPart(held=one) for one in held)).held
    possible = {None not in held or rest for rest in (True, False)} if False not in held else {False}
    assert verdict is (possible.pop() if len(possible) == 1 else None)


@given(HELD, st.sampled_from([0.25, 0.5, 0.75, 1.0]))
@settings(max_examples=50, deadline=None)
def test_what_is_typical_is_decided_once_the_rest_cannot_change_it(held, share):
    made = mostly([ClaimPart(held=one, words="w") for one in held], share)
    counts = {sum(one is True for one in held) + rest for rest in range(held.count(None) + 1)}
    possible = {count >= share * len(held) for count in counts}
    assert made.held is (possible.pop() if len(possible) == 1 else None)


def number(value, method="A"):
    return TableNumber(
        value=math.nan if value is None else value,
        signs="†",
        short=False,
        method=method,
        network="FCN",
        attack="CW",
        missing=((method, "CW"),) if value is None else (),
    )


def above(ours, rivals, by):
    return _part(ours, rivals, {"by": by})


@given(st.floats(0, 100), st.lists(st.floats(0, 100) | st.none(), min_size=1, max_size=3), st.sampled_from([-3, 0, 10]))
@settings(max_examples=50, deadline=None)
def test_above_is_decided_by_the_best_rival(ours, rivals, by):
    part = above(number(ours), [number(rival, "B") for rival in rivals], by)
    fails = [rival for rival in rivals if rival is not None and ours - rival < by - 1e-6]
    close = [rival for rival in rivals if rival is not None and abs(ours - rival - by) <= 1e-6]
    if not close:
        assert part.held is (False if fails else None if None in rivals else True)
    assert len(part.missing) == (rivals.count(None) if part.held is None else 0)


def test_the_words_of_a_comparison():
    part = above(number(61.494), [number(57.07, "B"), number(2.0, "C"), number(None, "D")], 0.0)
    assert (part.held, part.subject, part.words) == (None, "FCN, A", "CW 61.49† against B 57.07†")
    assert part.missing == (("D", "CW"),)
    assert above(number(None), [number(1.0)], 0.0) == ClaimPart(held=None, missing=(("A", "CW"),))
