"""docs/label_consistency.md is what the committed rows say; its table shows each figure in its place, or a dash."""

import dataclasses
import re

import page_label_consistency as tool
import pytest
from paper_samples import row
from render_pages import DOCS
from report_samples import PROVENANCE

from soap.auxiliary.consistency import GRADIENTS
from soap.paper.sweeps import GRADIENT_ATTACKS as ATTACKS
from soap.paper.sweeps import GRADIENT_VARIANTS as VARIANTS
from soap.paper.tables import TABLES
from soap.purifiers.soap import soap_spec
from soap.report import UPPER_BOUND
from soap.specs import BARE as INVALID

BARE = ("none", *VARIANTS)
DASHES = ["\N{EN DASH}"] * 5
LINES = DOCS / "label_consistency.toml"
AUTHORS = tool.read_authors(LINES)


def made_up(**changes):
    """Variant k has 980 - 100 k - 10 j right of 1,000 under attack j, and the final loss k / 8."""
    return [
        row(
            tool.MODEL, attack, defence(name), 980 - 100 * k - 10 * j,
            measures={"mean_linf": 1.0} if name == "none" else {"mean_loss_after": k / 8}, **changes,
        )
        for k, name in enumerate(BARE) for j, attack in enumerate(ATTACKS)
    ]  # fmt: skip


def defence(name):
    return INVALID if name == "none" else soap_spec("min-aux", (0.0, 0.1), 0.1, 5, gradient=name)


def table(text):
    """{variant: ours, authors'} of the lines behind the printed one, and the printed line."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    assert {len(cells) for cells in rows} == {11}
    _, _, printed, *own = rows
    return {name: (cells[1:6], cells[6:]) for name, cells in zip(BARE, own, strict=True)}, printed


def test_the_page_names_every_gradient_and_the_upper_bound():
    page = (DOCS / "label_consistency.md").read_text(encoding="utf-8")
    for gradient in GRADIENTS:
        assert f'`"{gradient}"`' in page
    assert UPPER_BOUND in page


def test_the_lines_are_the_variants_and_each_has_its_source():
    assert tuple(AUTHORS) == BARE
    assert "measured by us on the authors' published" in LINES.read_text(encoding="utf-8")
    assert "no rows kept here" in LINES.read_text(encoding="utf-8")


def test_every_figure_is_in_its_place():
    text = tool.evidence(made_up(), AUTHORS)
    found, printed = table(text)
    for k, name in enumerate(BARE):
        shares = [f"{98 - 10 * k - j:.2f}" for j in range(3)]
        assert found[name][0] == [*shares, DASHES[0] if name == "none" else f"{k / 8:.3f}", "1,000"]
        line = AUTHORS[name]
        theirs = [f"{line[key]:.2f}" for key in ("clean", "fgsm", "pgd")]
        assert found[name][1][:3] == theirs
        assert found[name][1][4] == f"{line['n']:,}"
    assert [found[name][1][3] for name in ("paper", "exact", "stop")] == ["0.10", "0.30", DASHES[0]]
    cells = TABLES["table-2"].cells
    assert printed[1:6] == DASHES
    assert printed[6:9] == [f"{cells['lc-min-aux', 'resnet18', attack].printed:.2f}" for attack in ATTACKS]
    assert "Not measured yet" not in text
    assert "(cpu (2 threads), commit c0ffee, 2026-01-02)" in text
    assert '`"stop"` at most 19.5 %' in text


@pytest.mark.parametrize("absent", ["stop", "none"])
def test_what_is_missing_is_a_dash_and_is_named(absent):
    rows = [one for one in made_up() if (one.attack.name, one.defence) != ("pgd", defence(absent))]
    text = tool.evidence(rows, AUTHORS)
    ours = table(text)[0][absent][0]
    assert [cell == DASHES[0] for cell in ours] == [False, False, True, True, False]
    assert f"**Not measured yet** on our network, in whole or in part: `{absent}`. To measure: `soap " in text


def test_without_rows_all_of_ours_are_dashes():
    text = tool.evidence([], AUTHORS)
    found, _ = table(text)
    assert all(ours == DASHES for ours, _ in found.values())
    assert ", ".join(f"`{name}`" for name in BARE) in text
    assert "Ours:" not in text


def test_the_bare_network_is_that_of_the_same_run():
    """Rows of other weights, numbers of images or attack settings are not mixed in."""
    other = dataclasses.replace(PROVENANCE, weights_sha256="f" * 64)
    changes = (
        {"provenance": other},
        {"n": 5000},
        {"method": "FGSM"},
        {"protocol": "black box"},
    )
    strangers = [one for change in changes for one in made_up(**change) if not one.defence.purifies]
    assert table(tool.evidence([*made_up(), *strangers], AUTHORS))[0]["none"][0][:3] == ["98.00", "97.00", "96.00"]
    purified = [one for one in made_up() if one.defence.purifies]
    assert table(tool.evidence([*purified, *strangers], AUTHORS))[0]["none"][0] == DASHES
