"""Which rows fill a cell of the paper, and where rows come from."""

import json
from dataclasses import replace

import pytest
from paper_rows import row_for

from soap import zoo
from soap.attacks import FGSM, PGD
from soap.attacks.substitute import Substitute
from soap.errors import FileError
from soap.paper import rows
from soap.paper.rows import committed_rows
from soap.paper.tables import TABLES, CellQuery
from soap.purifiers import SOAP
from soap.results import Store
from soap.specs import BARE, attack_spec, defence_spec

WANTED = CellQuery(recipe="mnist-fcn-dr", attack="pgd", eps_pfy="min-aux")


def test_the_bundled_rows_fill_their_cells():
    path = zoo.folder() / "mnist-fcn-dr.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    filled = Store(path).read()
    for row, eps_pfy in (("dr-0", "none"), ("dr-min-aux", "min-aux"), ("dr-oracle", "oracle")):
        for attack in ("none", "fgsm", "pgd", "cw", "df"):
            wanted = TABLES["table-1"].cells[row, "fcn", attack].query
            key = (attack, None if eps_pfy == "none" else eps_pfy, 10_000)
            (entry,) = (e for e in entries if (e["attack"]["name"], e["defence"]["eps"], e["n"]) == key)
            (found,) = wanted.found_in(filled)
            assert wanted.value(found) == pytest.approx(100 * entry["correct"] / 10_000)
            assert wanted.interval(found) == pytest.approx([100 * bound for bound in entry["interval"]])


def test_the_purifier_is_named_as_it_names_itself():
    assert defence_spec(SOAP(zoo.load("mnist-fcn-dr"), "min-aux")) == WANTED.defence


@pytest.mark.parametrize(
    "others",
    [
        {"protocol": "black-box"},
        {"model": "mnist-cnn-dr"},
        {"data": "mnist-mini"},
        {"attack": attack_spec("fgsm", FGSM(eps=0.3))},
        {"attack": attack_spec("pgd", PGD(eps=0.1, step_size=0.1, steps=1))},
        {"defence": BARE},
    ],
)
def test_a_row_of_another_setting_does_not_fill(others):
    assert WANTED.found_in([row_for(WANTED, 6000)])
    assert WANTED.found_in([row_for(WANTED, 6000, **others)]) == []


def test_the_first_thousand_images_stand_in_until_there_are_all():
    few, whole = row_for(WANTED, 600, n=1000), row_for(WANTED, 6100, weights="b")
    assert WANTED.found_in([few]) == [few]
    assert WANTED.found_in([few, whole]) == [whole]
    assert WANTED.found_in([row_for(WANTED, 500, n=999)]) == []
    other = replace(few.provenance, images="500..1499 of test")
    assert WANTED.found_in([replace(few, provenance=other)]) == []


def test_the_success_rate_is_a_measure_of_the_bare_row():
    wanted = TABLES["table-8"].cells["df-fcn", "success", "dr"].query
    row = replace(row_for(wanted, 12), measures={"success": 0.25})
    assert wanted.found_in([row]) == [row]
    assert wanted.value(row) == 25
    low, high = wanted.interval(row)
    assert 24 < low < 25 < high < 26
    assert wanted.found_in([row_for(wanted, 12)]) == []  # a row that did not measure it


def test_the_black_box_figure():
    wanted = TABLES["table-4"].cells["dr-min-aux", "cnn", "fcn"].query
    assert (wanted.recipe, wanted.attack) == ("mnist-cnn-dr", "substitute-fcn")
    assert wanted.settings == attack_spec(wanted.attack, Substitute(network="fcn"))
    row = row_for(wanted, 9000)
    assert row.protocol == "black-box"
    assert wanted.found_in([row]) == [row]
    for other in (
        {"attack": attack_spec(wanted.attack, Substitute(network="fcn", rounds=2))},
        {"protocol": "transfer"},
    ):
        assert wanted.found_in([row_for(wanted, 9000, **other)]) == []
    assert wanted.found_in([row_for(wanted, 1000, n=2000)]) == []


# --- Rows ---------------------------------------------------------------------------------------------------------


def test_rows_come_from_every_file_of_rows_each_figure_once(tmp_path, monkeypatch):
    earlier = row_for(WANTED, 6000)
    later = row_for(WANTED, 6000, date="2026-02-01T00:00:00+00:00")
    other = row_for(WANTED, 6100, weights="b")
    for name, kept in (("one", [later, other]), ("two", [earlier])):
        for row in kept:
            Store(tmp_path / f"{name}.jsonl").append(row)
    (tmp_path / "bench-cpu.jsonl").write_text('{"schema": 3, "what": "purify"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    read = rows.read_folder(tmp_path)
    assert read == [later, other, earlier]
    assert rows.without_duplicates(read) == [later, other]
    assert rows.without_duplicates([earlier, later]) == [later]
    monkeypatch.setattr(rows, "results_folder", lambda: tmp_path)
    known = {row.key for row in committed_rows()}
    assert {later.key, other.key} < known
    monkeypatch.setattr(rows, "results_folder", lambda: None)  # an installed package
    assert known - {row.key for row in committed_rows()} == {later.key, other.key}


@pytest.mark.parametrize("first", ["not JSON", '{"protocol": "transfer"}'])
def test_a_damaged_file_of_rows_is_named(tmp_path, first):
    (tmp_path / "bad.jsonl").write_text(f"{first}\n")
    with pytest.raises(FileError, match=r"bad\.jsonl, line 1"):
        rows.read_folder(tmp_path)


def test_results_of_this_checkout():
    folder = rows.results_folder()
    assert folder.name == "results"
    assert (folder.parent / "pyproject.toml").is_file()


# --- Footnotes ----------------------------------------------------------------------------------------------------
