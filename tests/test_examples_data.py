"""The examples on tables and signals: training works, and purification raises the accuracy under attack."""

import importlib
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # as a user runs them


def test_purification_raises_the_accuracy_on_attacked_table_rows(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("SOAP_COMMIT", "test")
    before = torch.get_rng_state()
    table = importlib.import_module("tabular")
    accuracy = table.main(epochs=30)
    assert torch.equal(torch.get_rng_state(), before)
    assert accuracy["clean, bare"] > 0.9
    assert accuracy["clean, purified"] > 0.85
    assert accuracy["attacked, bare"] < 0.7
    assert accuracy["attacked, purified"] > accuracy["attacked, bare"]
    assert "Purification helps here: +" in table.words(accuracy)
    assert accuracy["attacked, valid rows"] < 0.5
    assert {accuracy[f"{rows}, valid rows"] for rows in ("clean", "attacked validly", "purified")} == {1.0}
    assert accuracy["attacked, bare"] <= accuracy["attacked validly, bare"] < 0.7


def test_purification_raises_the_accuracy_on_attacked_signals(monkeypatch):
    monkeypatch.setenv("SOAP_COMMIT", "test")
    signals = importlib.import_module("signal_1d")
    accuracy = signals.main(epochs=10, n=1500)
    assert accuracy["clean, bare"] > 0.95
    assert accuracy["clean, purified"] > 0.9
    assert accuracy["attacked, purified"] > accuracy["attacked, bare"] + 0.05
    assert "Purification helps here: +" in signals.words(accuracy)


@pytest.mark.parametrize("name", ["tabular", "signal_1d"])
def test_words_report_that_purification_does_not_help(name):
    if name == "tabular":
        pytest.importorskip("sklearn")
    worse = {"clean, bare": 0.9, "clean, purified": 0.8, "attacked, bare": 0.5, "attacked, purified": 0.45}
    words = importlib.import_module(name).words(worse)
    assert "Purification does not help here: -5.0 points under attack, -10.0 on" in words


def test_beats_are_in_the_unit_interval_and_deterministic():
    beats = importlib.import_module("signal_1d").beats
    (x, y), (again, _) = beats(12, 3), beats(12, 3)
    assert torch.equal(x, again)
    assert x.shape == (12, 1, 64)
    assert x.min() >= 0
    assert x.max() <= 1
    assert y.tolist() == [0, 1, 2, 3, 4, 5] * 2
