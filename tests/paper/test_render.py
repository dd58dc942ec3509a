"""Every page is what `make render` writes from the committed rows."""

import sys

import pytest

from soap.paper import render


@pytest.mark.parametrize("path", render.PAGES, ids=lambda path: path.name)
def test_page_is_up_to_date(path):
    assert render.rendered(path) == path.read_text(encoding="utf-8"), f"{path.name} is out of date: run make render"


def test_check_names_pages_that_are_out_of_date_and_writes_nothing(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    page.write_text("old")
    monkeypatch.setattr(render, "ROOT", tmp_path)
    monkeypatch.setattr(render, "PAGES", {page: lambda document: "new"})
    monkeypatch.setattr(sys, "argv", ["render", "--check"])
    assert render.main() == 1
    assert page.read_text() == "old"
    monkeypatch.setattr(sys, "argv", ["render"])
    assert render.main() == 0
    assert page.read_text() == "new"
    assert capsys.readouterr().out.split() == ["README.md", "README.md"]
