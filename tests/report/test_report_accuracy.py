"""Rows as a table: pairs are found, figures are those of the rows."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import sample_row, sample_rows

from soap.report import percent, under_attack


def test_bare_and_purified_rows_are_paired():
    lines = under_attack(sample_rows())
    assert [line.title for line in lines] == ["no attack", "FGSM", "PGD"]
    assert [(line.bare.correct, line.purified.correct) for line in lines] == [(988, 971), (492, 849), (45, 807)]
    assert lines[2].seconds == "2.5 + 4.2"


def test_an_attack_without_a_common_name_keeps_its_own():
    rows = [sample_row("my-attack", purified=purified, correct=1) for purified in (False, True)]
    assert under_attack(rows)[0].title == "my-attack"


@settings(max_examples=30)
@given(correct=st.integers(0, 1000))
def test_the_text_holds_share_and_interval(correct):
    row = sample_row("pgd", purified=True, correct=correct)
    accuracy, low, high = map(float, re.findall(r"[\d.]+", percent(row)))
    assert accuracy == pytest.approx(correct / 10, abs=0.051)
    assert (low, high) == pytest.approx([100 * bound for bound in row.interval], abs=0.051)
    assert low <= accuracy <= high
