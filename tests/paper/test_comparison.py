"""Ours beside the paper's: means, intervals, marks, footnotes, and the pages that show them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_results import results_markdown
from paper_rows import row_for

from soap.paper import comparison
from soap.paper.comparison import (
    FEWER,
    SHORTER,
    UNEXPLAINED,
    UNKNOWN,
    compare,
    compare_all,
    number_text,
    points,
)
from soap.paper.tables import TABLES
from soap.results import wilson

TABLE = TABLES["table-1"]
PLACE = ("dr-min-aux", "fcn", "pgd")  # 61.88 in print
WANTED = TABLE.cells[PLACE].query


@pytest.fixture(autouse=True, scope="module")
def no_footnotes():
    """Texts of footnotes.toml do not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "explanation", lambda table, place: None)
        yield


def shown_with(*rows, place=PLACE, table=TABLE):
    return compare(table, rows).cells[place]


def test_nothing_measured():
    here = compare(TABLE, [])
    assert (here.done, here.wanted) == (0, 80)
    assert here.missing["mnist-fcn-dr"] == 20
    methods = ("no-def", "fgsm-at", "pgd-at", "dr")
    behind = {f"mnist-{n}-no-def behind defense-gan-mnist" for n in ("fcn", "cnn")}
    assert set(here.missing) == {f"mnist-{n}-{m}" for n in ("fcn", "cnn") for m in methods} | behind
    assert here.missing_text.startswith("mnist: fcn-no-def 5, cnn-no-def 5, ")
    shown = here.cells[PLACE]
    assert (shown.ours, shown.difference, shown.note, shown.rows, shown.needs_footnote) == (None, None, None, (), False)
    assert (here.notes, here.remarks) == ([], [])


def test_one_training_has_its_interval():
    shown = shown_with(row_for(WANTED, 6154))
    assert shown.ours == pytest.approx(61.54)
    assert shown.difference == pytest.approx(61.54 - 61.88)
    low, high = wilson(6154, 10_000)
    assert (shown.low, shown.high) == pytest.approx((100 * low, 100 * high))
    assert (shown.signs, shown.note) == ((), None)


def test_several_trainings_have_mean_and_spread():
    counts = (6000, 6300, 6120)
    rows = [row_for(WANTED, correct, weights=letter) for correct, letter in zip(counts, "abc", strict=True)]
    again = row_for(WANTED, 6000, weights="a", date="2025-01-01T00:00:00+00:00")  # the same weights count once
    shown = shown_with(*rows, again)
    assert (shown.ours, shown.low, shown.high) == pytest.approx((61.4, 60.0, 63.0))
    assert len(shown.rows) == 3


def test_a_mean_is_of_the_longest_schedule_alone():
    long, short = row_for(WANTED, 6000), row_for(WANTED, 3000, weights="b", training="30 epochs, seed 0, bf16")
    unrecorded = row_for(WANTED, 4000, weights="c", training="")
    assert shown_with(short, unrecorded).ours == 30
    assert shown_with(short, long, unrecorded).rows == (long,)


def test_signs_for_what_is_less_than_the_paper_did():
    here = compare(TABLE, [row_for(WANTED, 600, n=1000, training="30 epochs, seed 0, bf16")])
    assert here.cells[PLACE].signs == (SHORTER, FEWER)
    assert here.remarks == [
        f"{SHORTER} trained for fewer epochs than the recipe's: mnist-fcn-dr 30 of 100.",
        f"{FEWER} measured on the first images of the test set only: mnist-fcn-dr under pgd 1,000 of 10,000.",
    ]
    assert shown_with(row_for(WANTED, 6000, training="")).signs == (UNKNOWN,)
    assert shown_with(row_for(WANTED, 6000, training="100 epochs, seed 4, fp32")).signs == ()


def test_a_recipe_measured_on_fewer_images_is_named_once_with_all_its_attacks():
    other = TABLE.cells["dr-min-aux", "fcn", "cw"].query
    here = compare(TABLE, [row_for(wanted, 600, n=1000) for wanted in (WANTED, other)])
    assert [remark.partition(": ")[2] for remark in here.remarks] == ["mnist-fcn-dr under pgd/cw 1,000 of 10,000."]


@pytest.mark.parametrize(
    ("place", "off", "strays"),
    [
        (("dr-min-aux", "fcn", "pgd"), -3.01, True),
        (("dr-min-aux", "fcn", "pgd"), -2.99, False),
        (("dr-min-aux", "fcn", "pgd"), +20, False),  # SOAP may be better
        (("dr-oracle", "fcn", "pgd"), -4, True),
        (("pgd-at", "fcn", "pgd"), -4, True),
        (("pgd-at", "fcn", "pgd"), +4, True),
        (("no-def", "fcn", "fgsm"), +2.9, False),
        (("fgsm-at", "fcn", "pgd"), +40, False),  # label leaking: an accident
    ],
)
def test_what_strays_from_the_paper(place, off, strays):
    cell = TABLE.cells[place]
    shown = shown_with(row_for(cell.query, round(100 * (cell.printed + off))), place=place)
    assert shown.difference == pytest.approx(off)
    assert shown.needs_footnote is strays
    assert (shown.note == 1) is strays


def test_success_rates_stray_either_way_and_have_no_best():
    table = TABLES["table-8"]
    cells = [cell for cell in table.cells.values() if cell.row == "df-cnn"]
    rows = [replace(row_for(cell.query, 0), measures={"success": 0.5}) for cell in cells]
    here = compare(table, rows)
    assert {place[2]: shown.needs_footnote for place, shown in here.cells.items() if shown.rows} == {
        "no-def": True, "fgsm-at": False, "pgd-at": True, "dr": True
    }  # fmt: skip
    assert {shown.mark for shown in here.cells.values()} == {""}


def test_footnotes_are_numbered_by_text(monkeypatch):
    places = [("pgd-at", "fcn", "fgsm"), ("pgd-at", "fcn", "pgd"), ("dr-0", "fcn", "fgsm"), ("dr-0", "cnn", "pgd")]
    rows = [row_for(TABLE.cells[place].query, 100) for place in places]
    texts = {"pgd-at": "A shorter schedule.", "dr-0": None}
    monkeypatch.setattr(comparison, "explanation", lambda table, place: texts[place[0]])
    here = compare(TABLE, rows)
    assert [here.cells[place].note for place in places] == [1, 1, 2, 2]
    assert here.notes == [
        "PGD AT, FCN, FGSM −59.70; PGD AT, FCN, PGD −56.07: A shorter schedule.",  # noqa: RUF001
        f"SOAP-DR ε = 0, FCN, FGSM −28.15; SOAP-DR ε = 0, CNN, PGD −26.54: {UNEXPLAINED}.",  # noqa: RUF001
    ]


def column(**correct):
    """Rows of the column FCN, PGD of Table 1."""
    return [row_for(TABLE.cells[name.replace("_", "-"), "fcn", "pgd"].query, count) for name, count in correct.items()]


def test_the_best_of_ours_is_marked_when_the_column_is_whole():
    rows = column(no_def=10, fgsm_at=300, pgd_at=6200, defense_gan=9, dr_0=70, dr_min_aux=6100, dr_oracle=9900)
    marks = {place[0]: shown.mark for place, shown in compare(TABLE, rows).cells.items() if shown.mark}
    assert marks == {"pgd-at": "best", "dr-min-aux": "second"}
    tied = column(no_def=10, fgsm_at=6200, pgd_at=6200, defense_gan=9, dr_0=70, dr_min_aux=6100)
    marks = {place[0]: shown.mark for place, shown in compare(TABLE, tied).cells.items() if shown.mark}
    assert marks == {"pgd-at": "best", "fgsm-at": "best", "dr-min-aux": "second"}
    assert not any(shown.mark for shown in compare(TABLE, rows[1:]).cells.values())


@given(st.lists(st.integers(0, 10_000), min_size=6, max_size=6))
@settings(max_examples=15)
def test_marks_against_a_plain_ranking(counts):
    names = ("no_def", "fgsm_at", "pgd_at", "defense_gan", "dr_0", "dr_min_aux")
    cells = compare(TABLE, column(**dict(zip(names, counts, strict=True)))).cells
    ranks = sorted(set(counts), reverse=True)
    for name, count in zip(names, counts, strict=True):
        expected = {0: "best", 1: "second"}.get(ranks.index(count), "")
        assert cells[name.replace("_", "-"), "fcn", "pgd"].mark == expected


def test_only_narrows_rows_and_groups_and_keeps_the_marks():
    rows = column(no_def=10, fgsm_at=300, pgd_at=6200, defense_gan=9, dr_0=70, dr_min_aux=6100, dr_oracle=9900)
    here = compare(TABLE, rows, only="mnist-fcn-dr")
    assert [row.name for row in here.rows] == ["dr-0", "dr-min-aux", "dr-oracle", "dr-min-aux-batch"]
    assert [group.name for group in here.groups] == ["fcn"]
    assert here.cells[PLACE].mark == "second"
    assert (here.done, here.wanted) == (3, 20)
    behind = compare(TABLE, rows, only="defense-gan")
    assert ([row.name for row in behind.rows], behind.done, behind.wanted) == (["defense-gan"], 1, 10)


@pytest.mark.parametrize(
    ("off", "text"),
    [(-25.857, "−25.86"), (-3.0, "−3.00"), (-0.001, "0.00"), (0.004, "0.00"), (1.5, "+1.50"), (None, "")],  # noqa: RUF001
)
def test_differences_in_words(off, text):
    assert points(off) == text


# --- Pages --------------------------------------------------------------------------------------------------------


def entries(*rows):
    return compare_all(TABLES.values(), rows)


def test_markdown_shows_each_cell_once():
    rows = column(no_def=10, fgsm_at=300, pgd_at=6200, defense_gan=8500, dr_0=70, dr_min_aux=5000, dr_oracle=9900)
    page = results_markdown(entries(*rows), [])
    assert "| PGD AT | – / 76.82 | – / 60.70 | **62.00** / 57.07 (+4.93)<sup>1</sup> |" in page  # noqa: RUF001
    assert "| ε = min-aux | – / **97.56** | – / 66.85 | 50.00 / **61.88** (−11.88)<sup>1</sup> |" in page  # noqa: RUF001
    assert "| ε = oracle\\* |" in page
    assert "<sup>1</sup> PGD AT, FCN, PGD +4.93; SOAP-DR ε = min-aux, FCN, PGD −11.88: " in page  # noqa: RUF001
    assert "`make render`" in page
    assert "| Table 1: MNIST under white-box attacks | 7 of 80 |" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.count("|") >= 3 for line in lines)
    printed = [cell.printed for table in TABLES.values() for cell in getattr(table, "cells", {}).values()]
    shown = re.findall(r" / (?:<u>)?(?:\*\*)?(\d+\.\d\d)", page)
    assert shown == [number_text(number) for number in in_markdown_order() if number is not None]
    assert len(shown) == len([number for number in printed if number is not None]) == 332


def in_markdown_order():
    """Printed numbers table by table, group by group, row by row."""
    for table in TABLES.values():
        if hasattr(table, "cells"):
            for group in table.groups:
                for row in table.rows:
                    yield from (table.cells[row.name, group.name, column.name].printed for column in table.columns)
