"""The page: self-contained, well-formed, and nothing but a view of its rows."""

import html
import re
from html.parser import HTMLParser

import pytest
from report_samples import CORRECT, sample_rows, sample_showcase

from soap.report import UPPER_BOUND, percent
from soap.report.demo_page import draw_digits, draw_radii, draw_steps, render_demo
from soap.report.html import picture

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Walk(HTMLParser):
    """Elements with their attributes, and every tag that was not opened and closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.faults += self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"/{tag}")

    def handle_data(self, data):
        if not {"style", "script"} & {*self.open}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(rows=None, show=None, **changes) -> str:
    settings = {"attack": "pgd", "command": "soap demo --limit 1000", "seconds": 12.34} | changes
    return render_demo(sample_rows() if rows is None else rows, show or sample_showcase(2), **settings)


@pytest.fixture(scope="module")
def text() -> str:
    return page(show=sample_showcase(4))


@pytest.fixture(scope="module")
def walk(text) -> Walk:
    return Walk(text)


def test_the_walk_finds_faults():
    assert Walk("<p><b>x</p></b>").faults
    assert Walk("<p>x").faults == ["p"]
    assert not Walk("<p>x<br></p>").faults


def test_it_is_well_formed(text, walk):
    assert text.startswith("<!DOCTYPE html>")
    assert walk.faults == []
    assert [tag for tag, _ in walk.elements].count("h1") == 1
    assert ("html", {"lang": "en"}) in walk.elements


def test_it_asks_nothing_of_the_network(text, walk):
    addresses = [a[key] for _, a in walk.elements for key in ("src", "srcset", "href", "action", "data") if a.get(key)]
    assert len(addresses) == 4
    assert all(address.startswith("data:image/svg+xml;base64,") for address in addresses)
    assert not re.search(r"https?:|url\(|@import|<script|<link", text)


def test_every_picture_says_what_it_shows_in_words(walk):
    pictures = [a for tag, a in walk.elements if tag == "img"]
    assert len({a["alt"] for a in pictures}) == len(pictures) == 4
    assert "4 of 4 clean, 0 of 4 under PGD, 3 of 4 purified" in pictures[0]["alt"]
    assert "0.0876, 0.0543, 0.0234" in pictures[2]["alt"]
    assert "0.4: 0.0222" in pictures[3]["alt"]


@pytest.mark.parametrize(
    ("attack", "place", "count"), [("none", 0, 1000), ("fgsm", 1, 0), ("pgd", 0, 333), ("pgd", 1, 1)]
)
def test_a_changed_row_changes_the_table(attack, place, count):
    counts = {name: list(pair) for name, pair in CORRECT.items()}
    counts[attack][place] = count
    rows = sample_rows(counts)
    text = Walk(page(rows)).text
    assert all(percent(row) in text for row in rows)
    before = sample_rows()[[*CORRECT].index(attack) * 2 + place]
    assert percent(before) not in text


def test_the_table_has_a_line_an_attack(walk):
    for row in sample_rows():
        assert percent(row) in walk.text
    assert [walk.text.count(title) > 0 for title in ("no attack", "FGSM", "PGD")] == [True] * 3
    assert len([tag for tag, _ in walk.elements if tag == "tr"]) == 1 + 3
    assert len([tag for tag, _ in walk.elements if tag == "td"]) == 3 * 3


def test_the_head_line_follows_the_rows():
    text = Walk(page(sample_rows({**CORRECT, "pgd": (111, 222)}))).text
    assert "Under PGD the network alone classifies 11.1 % of 1,000 test digits correctly" in text
    assert "it classifies 22.2 %" in text


def test_it_says_what_is_not_promised_and_where_it_comes_from(walk):
    for wanted in (
        UPPER_BOUND, "No certificate", "first test digit of each class", "a1" * 32, "b2" * 32, "9.8.7", "c0ffee",
        "2026-01-02T03:04:05", "12.3 s", "soap demo --limit 1000", "PGD(eps=0.3)", "SOAP(eps='min-aux')",
    ):  # fmt: skip
        assert wanted in walk.text, wanted


def test_the_figures_of_the_text_are_the_showcase_s(walk):
    assert "it is 0.0123 for clean digits, 0.0876 under PGD, and 0.0234 after 2 purification steps" in walk.text
    assert "no pixel by more than 0.25" in walk.text


def test_the_pictures_are_the_showcase_s(walk):
    show = sample_showcase(4)
    drawn = (
        draw_digits(show, attack="attacked by PGD", blocks=("inputs",)),
        draw_digits(show, attack="attacked by PGD", blocks=("decoded",)),
        draw_steps(show),
        draw_radii(show),
    )
    assert [a["src"] for tag, a in walk.elements if tag == "img"] == [
        picture(figure, "").split('"')[1] for figure in drawn
    ]


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=http://x onerror=y>', "a&b", "{{ 7 * 7 }}"]
)
def test_hostile_names_are_text(hostile):
    text = page(sample_rows(model=hostile), command=f"soap demo --model {hostile}")
    walk = Walk(text)
    assert walk.faults == []
    assert len([tag for tag, _ in walk.elements if tag in ("script", "img")]) == 4
    assert html.escape(hostile) in text.replace("&#34;", "&quot;")
    assert hostile in walk.text
